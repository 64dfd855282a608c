//! Encrypted connections to object stores, and to services that lend keys for them.

use std::sync::Arc;

use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// The authorities that this host trusts, and the same cryptography as everywhere here.
pub(super) fn tls() -> Result<TlsConfig, String> {
    let found = rustls_native_certs::load_native_certs().certs;
    if found.is_empty() {
        return Err(
            "this host knows no certificate authority (Debian's package is ca-certificates)".to_owned()
        );
    }
    let roots: Vec<_> =
        found.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect();
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&roots))
        .unversioned_rustls_crypto_provider(crypto)
        .build())
}
