//! Certificates for tests, made when they are needed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;

/// A root, and certificates that it signed.
pub struct Office {
    folder: TempDir,
    root: CertifiedIssuer<'static, KeyPair>,
}

impl Office {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.pem"), root.pem()).unwrap();
        Self { folder, root }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A certificate for a host, and its key.
    pub fn issue(&self, host: &str, last_year: i32) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(last_year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.root).unwrap();
        let at = |what: &str| self.folder.path().join(format!("{host}-{last_year}-{what}.pem"));
        fs::write(at("cert"), cert.pem()).unwrap();
        fs::write(at("key"), key.serialize_pem()).unwrap();
        (at("cert"), at("key"))
    }
}
