//! Encryption of the wire: what each side is told about certificates. All files are PEM.
//!
//! A server shows a certificate; with `client_ca`, clients must show one too (mutual TLS). The token is wanted all the
//! same: a certificate says who speaks, the token says who may.

use std::{
    error, fs, io, iter,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

/// Longest handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// What a server shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerTls {
    /// Its certificate, and those between it and a root.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// Roots that clients' certificates must lead to; `None`: clients need none.
    #[serde(default)]
    pub client_ca: Option<PathBuf>,
}

/// What a client trusts and shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    /// Roots that the server's certificate must lead to.
    pub ca: PathBuf,
    /// The client's own certificate and key, for servers that want one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the server's certificate; `None`: the host of the URL.
    pub domain: Option<String>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// Which file cannot be read, and why.
    pub(crate) fn config(&self) -> Result<ServerTlsConfig, String> {
        let config = ServerTlsConfig::new().identity(identity(&self.cert, &self.key)?).timeout(HANDSHAKE);
        Ok(match &self.client_ca {
            Some(ca) => config.client_ca_root(Certificate::from_pem(pem(ca, "CERTIFICATE")?)),
            None => config,
        })
    }
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// Which file cannot be read, and why.
    pub(crate) fn config(&self) -> Result<ClientTlsConfig, String> {
        let ca = Certificate::from_pem(pem(&self.ca, "CERTIFICATE")?);
        let mut config = ClientTlsConfig::new().ca_certificate(ca).timeout(HANDSHAKE);
        if let Some((cert, key)) = &self.identity {
            config = config.identity(identity(cert, key)?);
        }
        Ok(match &self.domain {
            Some(domain) => config.domain_name(domain),
            None => config,
        })
    }
}

fn identity(cert: &Path, key: &Path) -> Result<Identity, String> {
    Ok(Identity::from_pem(pem(cert, "CERTIFICATE")?, pem(key, "PRIVATE KEY")?))
}

/// A PEM file that has at least one block of that kind.
fn pem(path: &Path, kind: &str) -> Result<Vec<u8>, String> {
    let bytes = fs::read(path).map_err(|error| format!("`{}`: {error}", path.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let there =
        text.lines().any(|line| line.starts_with("-----BEGIN ") && line.trim_end().ends_with(&format!("{kind}-----")));
    if there {
        Ok(bytes)
    } else {
        Err(format!("`{}`: found no block `-----BEGIN {kind}-----`; expected PEM", path.display()))
    }
}

/// An error and what is behind it, in one line.
pub(crate) fn causes(error: &(dyn error::Error + 'static)) -> String {
    let chain = iter::successors(Some(error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Whether a connection failed because one side does not accept the other's certificate, or does not speak TLS: trying
/// again would not help. The reason, if so.
pub(crate) fn refused(error: &(dyn error::Error + 'static)) -> Option<String> {
    let mut chain = iter::successors(Some(error), |error| error.source());
    // The TLS library wraps what it finds so; nothing else below HTTP/2 does.
    chain.find_map(|error| {
        let io = error.downcast_ref::<io::Error>().filter(|io| io.kind() == io::ErrorKind::InvalidData);
        io.map(ToString::to_string)
    })
}
