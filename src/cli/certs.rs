//! `skippy-stage certs`: certificates for trying out links with TLS.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Args;

use crate::chain::certs::TestCertificates;

/// Make a test authority and certificates for links with TLS
///
/// Writes ca.pem, server.pem for `skippy-stage stage`, client.pem for `skippy-stage serve`, and a key beside each. The key
/// of the authority is needed no more: keep it safe, or delete it. For more than a test use an authority of your own.
#[derive(Debug, Args)]
pub struct CertsArgs {
    /// Directory to write to; files that exist are kept, and are an error
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Names and IP addresses by which stages are called
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', required = true)]
    pub host: Vec<String>,
}

/// Runs the subcommand.
///
/// # Errors
/// When a file exists already or cannot be written, or a name cannot be put into a certificate.
pub fn run(args: &CertsArgs) -> anyhow::Result<ExitCode> {
    for path in write(&args.out, &args.host)? {
        println!("{}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the certificates for `hosts` to `dir` and tells the paths.
fn write(dir: &Path, hosts: &[String]) -> anyhow::Result<Vec<PathBuf>> {
    if let Some(bad) = hosts.iter().find(|host| host.is_empty() || host.contains([' ', '/', '*'])) {
        anyhow::bail!("`{bad}` is neither a name nor an IP address");
    }
    let made = TestCertificates::new(hosts).with_context(|| format!("no certificate for {}", hosts.join(", ")))?;
    let named = [("ca", &made.ca), ("server", &made.server), ("client", &made.client)];
    let files: Vec<(PathBuf, &str, u32)> = named
        .into_iter()
        .flat_map(|(name, made)| {
            let cert = (dir.join(format!("{name}.pem")), made.cert.as_str(), 0o644);
            [cert, (dir.join(format!("{name}-key.pem")), made.key.as_str(), 0o600)]
        })
        .collect();
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    if let Some((path, ..)) = files.iter().find(|(path, ..)| path.exists()) {
        anyhow::bail!("{} exists already: nothing was written, choose another directory", path.display());
    }
    for (path, text, mode) in &files {
        create(path, text, *mode).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(files.into_iter().map(|(path, ..)| path).collect())
}

/// A new file that had its mode before it had content.
fn create(path: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    options.open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_keys_that_only_the_owner_reads_and_never_overwrites() {
        let dir = tempfile::tempdir().unwrap();
        let hosts = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let out = dir.path().join("new");
        let paths = write(&out, &hosts).unwrap();
        assert_eq!(paths.len(), 6);
        for path in &paths {
            let text = fs::read_to_string(path).unwrap();
            let key = path.to_string_lossy().ends_with("-key.pem");
            assert_eq!(text.contains("PRIVATE KEY"), key, "{path:?}");
            #[cfg(unix)]
            {
                let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).unwrap().permissions());
                assert_eq!(mode & 0o077 == 0, key, "{path:?} {mode:o}");
            }
        }
        let before = fs::read(&paths[0]).unwrap();
        fs::remove_file(&paths[5]).unwrap();
        let error = write(&out, &hosts).unwrap_err().to_string();
        assert!(error.contains("ca.pem exists already"), "{error}");
        assert_eq!(fs::read(&paths[0]).unwrap(), before);
        assert!(!paths[5].exists());
    }

    #[test]
    fn refuses_what_is_no_host() {
        let dir = tempfile::tempdir().unwrap();
        for bad in ["", "a b", "http://b", "*.b", "\u{e4}"] {
            assert!(write(&dir.path().join("x"), &[bad.to_owned()]).is_err(), "{bad}");
        }
        assert!(!dir.path().join("x").exists());
    }
}
