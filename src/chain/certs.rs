//! Certificates for trying out links with TLS: an authority and what it vouches for.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Certified {
    /// The certificate.
    pub cert: String,
    /// Its key.
    pub key: String,
}

/// An authority, and one certificate for each kind of stage.
#[derive(Clone)]
pub struct TestCertificates {
    /// The authority.
    pub ca: Certified,
    /// For a stage that is called, and may call a further one.
    pub server: Certified,
    /// For a stage that calls only.
    pub client: Certified,
}

impl TestCertificates {
    /// Certificates for stages called by any of `hosts`, names or IP addresses. Valid from 2025 to 2045.
    ///
    /// # Errors
    /// When a name cannot be put into a certificate.
    pub fn new(hosts: &[String]) -> Result<Self, rcgen::Error> {
        let mut params = params("skippy-stage test authority", Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let ca_key = key.serialize_pem();
        let ca = CertifiedIssuer::self_signed(params, key)?;
        let signed = |name: &str, hosts: &[String], usages: &[ExtendedKeyUsagePurpose]| {
            let mut params = self::params(name, hosts.to_vec())?;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = usages.to_vec();
            params.use_authority_key_identifier_extension = true;
            let key = KeyPair::generate()?;
            let cert = params.signed_by(&key, &ca)?;
            Ok::<_, rcgen::Error>(Certified { cert: cert.pem(), key: key.serialize_pem() })
        };
        let (serves, calls) = (ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth);
        Ok(Self {
            server: signed("skippy-stage server", hosts, &[serves, calls.clone()])?,
            client: signed("skippy-stage client", &[], &[calls])?,
            ca: Certified { cert: ca.pem(), key: ca_key },
        })
    }
}

fn params(name: &str, hosts: Vec<String>) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2025, 1, 1);
    params.not_after = date_time_ymd(2045, 1, 1);
    Ok(params)
}
