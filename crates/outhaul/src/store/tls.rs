//! TLS to the server: what each `sslmode` checks, with rustls on ring.
//!
//! The provider is passed along and never installed for the process, which belongs to the program that uses
//! this library. As in libpq a root file turns checking on in every mode; without one only `verify-ca` and
//! `verify-full` check the server's certificate, then against the system's roots.
//!
//! A certificate that stands in the root file itself is trusted as it is. Servers with a self-signed
//! certificate are set up that way, and webpki alone would refuse it as an authority's; its dates are not
//! checked, since taking it out of the file is what ends the trust.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    SupportedProtocolVersion,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::dsn::{Roots, TlsMode, TlsOptions, TlsVersion};
use crate::error::{Error, Result};

/// What to give to tokio-postgres. Reads the files that the options name.
pub(crate) fn connector(options: &TlsOptions) -> Result<MakeRustlsConnect> {
    let provider = Arc::new(ring::default_provider());
    let versions = versions(options)?;
    let verifier = Verifier { chain: chain(options)?, provider: provider.clone() };
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .map_err(|error| Error::config("no common TLS version is left").with_source(error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match client_certificate(options)? {
        None => config.with_no_client_auth(),
        Some((cert, key, files)) => config.with_client_auth_cert(cert, key).map_err(|error| {
            Error::config(format!("{files} cannot be used as a client certificate: {error}"))
                .with_hint("The key must belong to the certificate.")
        })?,
    };
    config.enable_sni = options.sni;
    if options.direct {
        config.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    Ok(MakeRustlsConnect::new(config))
}

/// What to do about a failed handshake, when rustls is the one that refused.
pub(crate) fn hint(error: &rustls::Error) -> &'static str {
    let rustls::Error::InvalidCertificate(cause) = error else {
        return "Check that the server speaks TLS 1.2 or later, and whether it wants a client certificate.";
    };
    match cause {
        CertificateError::UnknownIssuer => {
            "Give the authority's certificate as sslrootcert=FILE, or the server's own when it is self-signed."
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "Connect by a name in the certificate's subjectAltName (the subject alone does not count), or use sslmode=verify-ca."
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "Renew the server's certificate."
        }
        _ => "Check the server's certificate.",
    }
}

fn versions(options: &TlsOptions) -> Result<Vec<&'static SupportedProtocolVersion>> {
    let wanted = options.oldest..=options.newest;
    let all = [(TlsVersion::V1_2, &TLS12), (TlsVersion::V1_3, &TLS13)];
    let versions: Vec<_> =
        all.iter().filter(|(version, _)| wanted.contains(version)).map(|(_, v)| *v).collect();
    if versions.is_empty() {
        return Err(Error::config("ssl_min_protocol_version is above ssl_max_protocol_version")
            .with_hint("Give only the minimum."));
    }
    Ok(versions)
}

/// What the server's certificate is checked against; `None` where it is not checked.
fn chain(options: &TlsOptions) -> Result<Option<Chain>> {
    let default = options.home.as_ref().map(|home| home.join("root.crt")).filter(|file| file.is_file());
    let file = match (&options.roots, options.mode) {
        (_, TlsMode::Disable) => return Ok(None),
        (Roots::File(file), _) => Some(file.clone()),
        (Roots::Default, _) => default,
        (Roots::System, _) => None,
    };
    let (roots, pinned) = match file {
        Some(file) => roots_of(&file)?,
        None if options.mode >= TlsMode::VerifyCa => (system_roots()?, Vec::new()),
        None => return Ok(None),
    };
    Ok(Some(Chain { roots, pinned, name: options.mode == TlsMode::VerifyFull }))
}

fn roots_of(file: &Path) -> Result<(RootCertStore, Vec<CertificateDer<'static>>)> {
    let certificates = certificates_of("sslrootcert", file)?;
    let mut roots = RootCertStore::empty();
    for (i, certificate) in certificates.iter().enumerate() {
        roots.add(certificate.clone()).map_err(|error| {
            Error::config(format!(
                "certificate {} of sslrootcert {} is unusable: {error}",
                i + 1,
                file.display()
            ))
            .with_hint("It must hold X.509 certificates of version 3 in PEM form.")
        })?;
    }
    Ok((roots, certificates))
}

fn system_roots() -> Result<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added > 0 {
        return Ok(roots);
    }
    let error = Error::config("the system has no trusted root certificates")
        .with_hint("Install them (Debian: `apt-get install ca-certificates`), or give sslrootcert=FILE.");
    Err(match found.errors.into_iter().next() {
        Some(cause) => error.with_source(cause),
        None => error,
    })
}

type ClientCertificate = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, String);

fn client_certificate(options: &TlsOptions) -> Result<Option<ClientCertificate>> {
    if !options.send_cert || options.mode == TlsMode::Disable {
        return Ok(None);
    }
    let default =
        |name: &str| options.home.as_ref().map(|home| home.join(name)).filter(|file| file.is_file());
    let Some(cert) = options.cert.clone().or_else(|| default("postgresql.crt")) else { return Ok(None) };
    let Some(key) = options.key.clone().or_else(|| default("postgresql.key")) else {
        return Err(Error::config(format!("there is no key for the client certificate {}", cert.display()))
            .with_hint("Give it as sslkey=FILE."));
    };
    let files = format!("sslcert {} with sslkey {}", cert.display(), key.display());
    Ok(Some((certificates_of("sslcert", &cert)?, private_key(&key)?, files)))
}

fn certificates_of(parameter: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let text = read(parameter, file)?;
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(&text).collect::<Result<_, _>>().unwrap_or_default();
    if certificates.is_empty() {
        return Err(Error::config(format!(
            "{parameter} {} holds no certificate in PEM form",
            file.display()
        ))
        .with_hint("It must contain `-----BEGIN CERTIFICATE-----`."));
    }
    Ok(certificates)
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>> {
    refuse_open_key(file)?;
    let text = read("sslkey", file)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|_| {
        Error::config(format!("sslkey {} holds no unencrypted private key in PEM form", file.display()))
            .with_hint("Decrypt it into a file of mode 0600: `openssl pkey -in KEY -out PLAIN`.")
    })
}

fn read(parameter: &str, file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|error| {
        Error::config(format!("cannot read {parameter} {}: {error}", file.display()))
            .with_hint("Check the path and the file's owner and mode.")
    })
}

/// As libpq: nobody else may read the key, save that one of root's may be shared with a group.
#[cfg(unix)]
fn refuse_open_key(file: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let Ok(meta) = std::fs::metadata(file) else { return Ok(()) };
    let forbidden = if meta.uid() == 0 { 0o037 } else { 0o077 };
    if meta.mode() & forbidden == 0 {
        return Ok(());
    }
    Err(Error::config(format!("sslkey {} may be read by others", file.display()))
        .with_hint("Run `chmod 0600` on it (0640 if root owns it)."))
}

#[cfg(not(unix))]
fn refuse_open_key(_: &Path) -> Result<()> {
    Ok(())
}

#[derive(Debug)]
struct Chain {
    roots: RootCertStore,
    /// Certificates that are trusted as they are.
    pinned: Vec<CertificateDer<'static>>,
    /// The host's name must be in the certificate.
    name: bool,
}

/// Signatures are verified in every mode: without that a handshake proves nothing, not even that the
/// server holds the key of the certificate that channel binding names.
#[derive(Debug)]
struct Verifier {
    chain: Option<Chain>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        let certificate = ParsedCertificate::try_from(end_entity)?;
        if !chain.pinned.iter().any(|pinned| pinned == end_entity) {
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(
                &certificate,
                &chain.roots,
                intermediates,
                now,
                algorithms,
            )?;
        }
        if chain.name {
            verify_server_name(&certificate, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::dsn::Dsn;
    use super::*;

    fn error(parameters: &str) -> String {
        let dsn: Dsn = format!("user=u host=h {parameters}").parse().unwrap();
        let error = connector(&dsn.tls).map(|_| ()).unwrap_err();
        assert!(error.is_config() && error.hint().is_some(), "{error}");
        error.to_string()
    }

    fn checks(parameters: &str) -> Option<bool> {
        let dsn: Dsn = format!("user=u host=h {parameters}").parse().unwrap();
        chain(&dsn.tls).unwrap().map(|chain| chain.name)
    }

    #[test]
    fn weak_modes_check_nothing_without_a_root_file() {
        for mode in ["disable", "allow", "prefer", "require"] {
            assert_eq!(checks(&format!("sslmode={mode}")), None, "{mode}");
        }
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        assert!(error("sslrootcert=/nowhere").starts_with("cannot read sslrootcert /nowhere: "));
        assert!(error("sslcert=/nowhere sslkey=/nowhere").starts_with("cannot read sslcert /nowhere: "));
        assert_eq!(error("sslcert=/c"), "there is no key for the client certificate /c");
        assert_eq!(error("sslrootcert=/dev/null"), "sslrootcert /dev/null holds no certificate in PEM form");
        assert_eq!(
            error("ssl_min_protocol_version=TLSv1.3 ssl_max_protocol_version=TLSv1.2"),
            "ssl_min_protocol_version is above ssl_max_protocol_version"
        );
    }

    #[test]
    fn a_root_file_at_home_turns_checking_on() {
        let home = std::env::temp_dir().join(format!("outhaul-tls-{}", std::process::id()));
        std::fs::create_dir_all(home.join(".postgresql")).unwrap();
        let env = |name: &str| (name == "HOME").then(|| home.to_string_lossy().into_owned());
        let required = Dsn::parse("user=u host=h sslmode=require", env).unwrap();
        assert!(chain(&required.tls).unwrap().is_none());
        std::fs::write(home.join(".postgresql/root.crt"), "no certificate").unwrap();
        assert!(chain(&required.tls).unwrap_err().to_string().contains("root.crt holds no certificate"));
        std::fs::remove_dir_all(&home).unwrap();
    }

    #[test]
    fn no_file_is_read_when_tls_is_off() {
        assert_eq!(checks("sslmode=disable sslrootcert=/nowhere"), None);
        let dsn: Dsn = "user=u host=h sslmode=disable sslcert=/nowhere".parse().unwrap();
        assert!(connector(&dsn.tls).is_ok());
    }
}
