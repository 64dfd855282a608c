//! TLS: certificates as QEMU and nbdkit keep them, and clients that use it, do not, or may not.

use std::fs;
use std::io::{self, Read};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use forebay_nbd::codec::{option, option_reply};
use forebay_nbd::{Address, Export, Limits, NbdServer, ServerConfig, ServerError, TlsSettings};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use tempfile::TempDir;

use crate::memory::{MemoryVolume, Workers};
use crate::serve::{MIB, Serve, Wish, eventually};
use crate::tools::{have, run};

/// An authority, and what it signed.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(parameters, key), pem }
    }

    /// Writes a certificate and key for `role` (`server` or `client`) to `directory`, with the authority's own.
    fn issue(&self, directory: &Path, role: &str) {
        let mut parameters = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        let usage = match role {
            "server" => ExtendedKeyUsagePurpose::ServerAuth,
            _ => ExtendedKeyUsagePurpose::ClientAuth,
        };
        parameters.extended_key_usages = vec![usage];
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join(format!("{role}-cert.pem")), certificate.pem()).unwrap();
        fs::write(directory.join(format!("{role}-key.pem")), key.serialize_pem()).unwrap();
        fs::write(directory.join("ca-cert.pem"), &self.pem).unwrap();
    }
}

/// A server with TLS on a unix socket and a TCP port, and the directory of its clients' certificates.
struct Secure {
    serve: Serve,
    pki: TempDir,
}

impl Secure {
    fn new(required: bool, verify_clients: bool) -> Self {
        let pki = TempDir::new().unwrap();
        let authority = Authority::new();
        authority.issue(&pki.path().join("server"), "server");
        authority.issue(&pki.path().join("client"), "client");
        fs::create_dir(pki.path().join("anonymous")).unwrap();
        fs::copy(pki.path().join("client/ca-cert.pem"), pki.path().join("anonymous/ca-cert.pem")).unwrap();
        Authority::new().issue(&pki.path().join("stranger"), "client");
        fs::write(pki.path().join("stranger/ca-cert.pem"), &authority.pem).unwrap();
        let settings = TlsSettings { directory: pki.path().join("server"), required, verify_clients };
        let wish = Wish { tls: Some(settings), tcp: true, size_bytes: 32 * MIB, ..Wish::default() };
        let serve = Serve::with(wish);
        Self { serve, pki }
    }

    fn certificates(&self, of: &str) -> PathBuf {
        self.pki.path().join(of)
    }

    /// The URI by which libnbd connects over TLS with the certificates of `of`.
    fn uri(&self, of: &str) -> String {
        let addresses = self.serve.server.addresses();
        let Address::Tcp { port, .. } = &addresses[1] else { panic!("{addresses:?}") };
        format!("nbds://localhost:{port}/vol?tls-certificates={}", self.certificates(of).display())
    }
}

#[test]
fn a_plain_client_is_told_that_tls_is_required() {
    let secure = Secure::new(true, false);
    let mut c = secure.serve.connect();
    assert_eq!(c.go("vol"), Err(option_reply::ERR_TLS_REQD));
    assert_eq!(c.verdict(option::LIST, &[]), option_reply::ERR_TLS_REQD);
    assert_eq!(c.verdict(option::STRUCTURED_REPLY, &[]), option_reply::ERR_TLS_REQD);
    assert_eq!(c.verdict(option::STARTTLS, b"x"), option_reply::ERR_INVALID);
    c.send_option(option::EXPORT_NAME, b"vol");
    assert!(c.is_closed());
    let mut c = secure.serve.connect();
    assert_eq!(c.verdict(option::ABORT, &[]), option_reply::ACK);
}

#[test]
fn tls_that_is_offered_may_be_left_out() {
    let secure = Secure::new(false, false);
    let mut c = secure.serve.client();
    assert_eq!(c.read(0, 512).unwrap().len(), 512);
}

#[test]
fn what_follows_starttls_in_the_clear_is_not_taken_for_tls() {
    let secure = Secure::new(false, false);
    let mut c = secure.serve.connect();
    // Both options in one segment: the second would be answered if the server had read ahead.
    let mut both = Vec::new();
    for number in [option::STARTTLS, option::LIST] {
        forebay_nbd::codec::OptionHeader { option: number, len: 0 }.encode(&mut both);
    }
    c.send(&both);
    assert_eq!(c.answers(option::STARTTLS).pop().unwrap().0, option_reply::ACK);
    let mut rest = Vec::new();
    let _ = c.stream.read_to_end(&mut rest);
    // At most a TLS alert (record type 21) comes back, no answer to the option.
    assert!(rest.is_empty() || rest[0] == 21, "{rest:?}");
}

#[test]
fn libnbd_and_qemu_work_over_tls() {
    if !(have("nbdinfo") && have("nbdcopy") && have("qemu-img")) {
        return;
    }
    let secure = Secure::new(true, false);
    let shown = run("nbdinfo", &[&secure.uri("anonymous")]).unwrap();
    assert!(shown.contains("with TLS") && shown.contains("structured"), "{shown}");
    let [source, target] = ["source", "target"].map(|n| secure.serve.directory.path().join(n));
    let bytes: Vec<u8> = (0..32u32 << 18).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(&source, &bytes).unwrap();
    run("nbdcopy", &[source.to_str().unwrap(), &secure.uri("anonymous")]).unwrap();
    run("nbdcopy", &[&secure.uri("anonymous"), target.to_str().unwrap()]).unwrap();
    assert!(fs::read(&target).unwrap() == bytes);
    let addresses = secure.serve.server.addresses();
    let Address::Tcp { port, .. } = &addresses[1] else { panic!("{addresses:?}") };
    let object =
        format!("tls-creds-x509,id=t,endpoint=client,dir={}", secure.certificates("anonymous").display());
    let options = format!("driver=nbd,host=localhost,port={port},export=vol,tls-creds=t");
    let compare = ["compare", "--object", &object, "--image-opts", &options];
    let file = format!("driver=file,filename={}", source.display());
    run("qemu-img", &[&compare[..], &[&file]].concat()).unwrap();
    assert!(secure.serve.server.status().exports[0].counts.errors == 0);
}

#[test]
fn clients_are_verified_where_it_is_asked_for() {
    if !have("nbdinfo") {
        return;
    }
    let secure = Secure::new(true, true);
    run("nbdinfo", &["--size", &secure.uri("client")]).unwrap();
    run("nbdinfo", &["--size", &secure.uri("anonymous")]).unwrap_err();
    run("nbdinfo", &["--size", &secure.uri("stranger")]).unwrap_err();
    eventually("all leave", || secure.serve.server.status().connections.is_empty());
}

/// Beside 80 connections from its own address that say nothing, and are there again as soon as they are closed, a client comes in.
#[test]
fn who_only_connects_keeps_no_client_out() {
    const TIMES: usize = 20;
    if !have("nbdinfo") {
        return;
    }
    let secure = Secure::new(true, true);
    let addresses = secure.serve.server.addresses();
    let Address::Tcp { port, .. } = addresses[1] else { panic!("{addresses:?}") };
    let over = AtomicBool::new(false);
    let came_in = thread::scope(|scope| {
        for _ in 0..80 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let Ok(mut silent) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                    silent.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                    let mut greeting = [0; 64];
                    // Until it is closed.
                    while !over.load(Ordering::Relaxed) {
                        match silent.read(&mut greeting) {
                            Ok(0) => break,
                            Err(e) if e.kind() != io::ErrorKind::WouldBlock => break,
                            _ => {}
                        }
                    }
                }
            });
        }
        eventually("places are taken", || secure.serve.server.status().connections.len() >= 32);
        let uri = secure.uri("client");
        let came_in = (0..TIMES).filter(|_| run("nbdinfo", &["--size", &uri]).is_ok()).count();
        over.store(true, Ordering::Relaxed);
        came_in
    });
    assert_eq!(came_in, TIMES);
    assert!(secure.serve.server.status().connections_displaced > 0, "they were in the way");
}

#[test]
fn certificates_that_are_missing_or_wrong_are_named() {
    let pki = TempDir::new().unwrap();
    let start = |verify_clients| {
        let settings = TlsSettings { directory: pki.path().to_owned(), required: true, verify_clients };
        let volume = MemoryVolume::new("vol", MIB, Workers::Inline);
        let result = NbdServer::start(ServerConfig {
            listen: vec!["tcp:127.0.0.1:0".parse().unwrap()],
            exports: vec![Export::new(std::sync::Arc::new(volume))],
            tls: Some(settings),
            socket: Default::default(),
            limits: Limits::default(),
            memory: std::sync::Arc::default(),
        });
        match result {
            Err(ServerError::Tls(error)) => error.to_string(),
            Err(other) => panic!("{other}"),
            Ok(_) => String::new(),
        }
    };
    assert!(start(false).contains("server-cert.pem"));
    Authority::new().issue(pki.path(), "server");
    assert_eq!(start(true), "");
    fs::write(pki.path().join("ca-crl.pem"), "nonsense").unwrap();
    assert!(start(true).contains("ca-crl.pem"));
    assert_eq!(start(false), "");
    fs::remove_file(pki.path().join("ca-cert.pem")).unwrap();
    assert!(start(true).contains("ca-cert.pem"));
    let key = KeyPair::generate().unwrap();
    fs::write(pki.path().join("server-key.pem"), key.serialize_pem()).unwrap();
    assert!(start(false).contains("cannot use the certificates"));
    fs::write(pki.path().join("server-key.pem"), "").unwrap();
    assert!(start(false).contains("server-key.pem"));
}
