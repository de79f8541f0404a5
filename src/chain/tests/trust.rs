use super::*;
use crate::chain::certs::TestCertificates;

fn token(text: &str) -> Security {
    Security { token: Some(LinkToken::new(text).unwrap()), ..Security::default() }
}

#[tokio::test]
async fn the_token_must_be_the_same() {
    let mut called = Called::start(token("sesame"), LinkOptions::default()).await;
    let options = LinkOptions::default();
    for (security, text) in [
        (Security::default(), "does not let us in: this stage wants a link token (`--link-token-file`)"),
        (token("simsim"), "does not let us in: the link token is not that of this stage"),
    ] {
        let error = link::connect(&called.target(), hello(), &security, &options).await.unwrap_err();
        assert!(matches!(error, LinkError::Unauthenticated { .. }) && error.to_string().contains(text), "{error}");
    }
    let target = called.target();
    let (_link, _session) = called.linked_by(&target, &token("sesame"), &options).await;
}

#[tokio::test]
async fn tls_wants_certificates_of_one_authority_at_both_ends() {
    let dir = tempfile::tempdir().unwrap();
    let files = |name: &str| {
        let made = TestCertificates::new(&["127.0.0.1".to_owned()]).unwrap();
        let path = |file: &str| dir.path().join(format!("{name}-{file}"));
        let kinds = [("ca", made.ca), ("server", made.server), ("client", made.client)];
        for (kind, made) in kinds {
            std::fs::write(path(kind), made.cert).unwrap();
            std::fs::write(path(&format!("{kind}-key")), made.key).unwrap();
        }
        let with = |kind: &str| TlsFiles { ca: path("ca"), cert: path(kind), key: path(&format!("{kind}-key")) };
        (with("server"), with("client"))
    };
    let tls = |files: TlsFiles| Security { tls: Some(files), ..Security::default() };
    let ((server, client), (other_server, other_client)) = (files("ours"), files("others"));
    let mut called = Called::start(tls(server.clone()), LinkOptions::default()).await;
    let options = LinkOptions::default();
    let mixed = TlsFiles { ca: client.ca.clone(), ..other_client.clone() };
    for (name, security) in [
        ("another authority", tls(other_client)),
        ("ours to check theirs, another's to show", tls(mixed)),
        ("another server's", tls(other_server)),
        ("none", Security::default()),
    ] {
        let error = link::connect(&called.target(), hello(), &security, &options).await.unwrap_err();
        assert!(matches!(error, LinkError::Unreachable { .. }), "{name}: {error}");
    }
    let https: Target = called.target().to_string().replace("http:", "https:").parse().unwrap();
    let error = link::connect(&https, hello(), &Security::default(), &options).await.unwrap_err();
    assert!(error.to_string().contains("asks for TLS: give `--link-ca`"), "{error}");
    for (target, files) in [(https, client), (called.target(), server)] {
        let (link, mut session) = called.linked_by(&target, &tls(files), &options).await;
        drop(link);
        assert_eq!(recv(&mut session).await.unwrap_err(), LinkEnded::Closed);
    }
}

#[tokio::test]
async fn plain_links_stay_on_this_machine() {
    let options = LinkOptions { connect_timeout: Duration::from_millis(100), ..LinkOptions::default() };
    let target = "http://192.0.2.1:9".parse().unwrap();
    let error = link::connect(&target, hello(), &token("sesame"), &options).await.unwrap_err();
    assert!(matches!(error, LinkError::Security(SecurityError::Plain { .. })), "{error}");
    let listen = |security| async {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let (sessions, _receiver) = mpsc::channel(1);
        listen::serve(listener, local(), security, &LinkOptions::default(), sessions, async {}).await
    };
    let error = listen(token("sesame")).await.unwrap_err().to_string();
    assert!(error.starts_with("0.0.0.0:") && error.contains("is not on this machine"), "{error}");
    listen(Security { insecure: true, ..Security::default() }).await.unwrap();
}

#[tokio::test]
async fn health_checks_need_no_token() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    let called = Called::start(token("sesame"), LinkOptions::default()).await;
    let channel =
        tonic::transport::Endpoint::from_shared(called.target().to_string()).unwrap().connect().await.unwrap();
    for service in ["", "skippy.stage.v1.Stage"] {
        let request = HealthCheckRequest { service: service.into() };
        let status = HealthClient::new(channel.clone()).check(request).await.unwrap().into_inner().status;
        assert_eq!(status, 1, "serving");
    }
}
