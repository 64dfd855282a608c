//! TLS: the server's certificate from a directory as QEMU and nbdkit keep it, and the session of a connection.

use std::fs;
use std::io::{self, IoSlice, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use thiserror::Error;

use crate::lock::hold;
use crate::negotiation::TlsPolicy;
use crate::socket::Socket;

/// Encrypted bytes that are gathered before they are sent.
const CIPHER_BYTES_MAX: usize = 128 * 1024;

/// Encrypted bytes that are read at a time: one record of the greatest length.
const RECORD_BYTES: usize = 18 * 1024;

/// Where a server's certificates are and what it demands of clients.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// Directory with `server-cert.pem` (the certificate, and the chain that leads to the authority),
    /// `server-key.pem`, and, to verify clients, `ca-cert.pem` and optionally `ca-crl.pem`.
    pub directory: PathBuf,
    /// Whether a client must use TLS before it learns anything else.
    pub required: bool,
    /// Whether a client must show a certificate that an authority in `ca-cert.pem` signed.
    pub verify_clients: bool,
}

/// Why TLS cannot be set up.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file is missing, unreadable, or does not hold what its name says.
    #[error("cannot use {}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Certificate and key do not make a server, or the authorities are not usable.
    #[error("cannot use the certificates in {}: {source}", directory.display())]
    Identity {
        /// The directory.
        directory: PathBuf,
        /// What is wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// What sessions are made from.
#[derive(Clone)]
pub(crate) struct TlsIdentity {
    config: Arc<ServerConfig>,
    policy: TlsPolicy,
}

impl TlsIdentity {
    /// Reads certificate, key and authorities.
    pub(crate) fn load(settings: &TlsSettings) -> Result<Self, TlsError> {
        let dir = &std::path::absolute(&settings.directory).unwrap_or_else(|_| settings.directory.clone());
        let chain = read_pem::<CertificateDer<'static>>(&dir.join("server-cert.pem"))?;
        let key_path = dir.join("server-key.pem");
        let key = PrivateKeyDer::from_pem_file(&key_path).map_err(|e| pem_error(&key_path, e))?;
        let identity_error = |source| TlsError::Identity { directory: dir.clone(), source };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|e| identity_error(e.into()))?;
        let builder = if settings.verify_clients {
            let mut roots = RootCertStore::empty();
            for authority in read_pem(&dir.join("ca-cert.pem"))? {
                roots.add(authority).map_err(|e| identity_error(e.into()))?;
            }
            let crl_path = dir.join("ca-crl.pem");
            let revoked: Vec<CertificateRevocationListDer<'static>> =
                if fs::exists(&crl_path).map_err(|e| pem_error(&crl_path, pem::Error::Io(e)))? {
                    read_pem(&crl_path)?
                } else {
                    Vec::new()
                };
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .with_crls(revoked)
                .build()
                .map_err(|e| identity_error(e.into()))?;
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let config = builder.with_single_cert(chain, key).map_err(|e| identity_error(e.into()))?;
        let policy = if settings.required { TlsPolicy::Required } else { TlsPolicy::Offered };
        Ok(Self { config: Arc::new(config), policy })
    }

    pub(crate) const fn policy(&self) -> TlsPolicy {
        self.policy
    }
}

/// All sections of a kind in a file, at least one.
fn read_pem<T: PemObject>(path: &Path) -> Result<Vec<T>, TlsError> {
    let sections = T::pem_file_iter(path).map_err(|e| pem_error(path, e))?;
    let found: Vec<T> = sections.collect::<Result<_, _>>().map_err(|e| pem_error(path, e))?;
    if found.is_empty() {
        return Err(pem_error(path, pem::Error::NoItemsFound));
    }
    Ok(found)
}

fn pem_error(path: &Path, e: pem::Error) -> TlsError {
    let why = match e {
        pem::Error::Io(e) => forebay_block::words_of(&e).to_string(),
        pem::Error::NoItemsFound => "it has no section in PEM of the kind that its name says".to_owned(),
        other => other.to_string(),
    };
    TlsError::File { path: path.to_owned(), why }
}

/// The TLS state of a connection. Reader and writer take its lock to decrypt and to encrypt, never while they wait
/// for the socket: else a client that sends without reading could stop both.
pub(crate) struct TlsSession {
    socket: Arc<Socket>,
    state: Mutex<ServerConnection>,
}

impl TlsSession {
    /// Does the handshake; each wait ends at `deadline`. `got_on` is called when the client has got on with it.
    pub(crate) fn accept(
        identity: &TlsIdentity,
        socket: Arc<Socket>,
        deadline: Instant,
        got_on: impl Fn(),
    ) -> io::Result<Self> {
        let mut state = ServerConnection::new(Arc::clone(&identity.config)).map_err(io::Error::other)?;
        let mut input = vec![0; RECORD_BYTES];
        loop {
            let mut output = Vec::new();
            drain(&mut state, &mut output)?;
            // There is something to say only once the client has said all of its turn.
            if !output.is_empty() {
                got_on();
            }
            socket.limit_waits(deadline)?;
            socket.send_all(&mut [IoSlice::new(&output)])?;
            if !state.is_handshaking() {
                return Ok(Self { socket, state: Mutex::new(state) });
            }
            let received = socket.receive(&mut input)?;
            if received == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut rest = &input[..received];
            while !rest.is_empty() {
                state.read_tls(&mut rest)?;
                if let Err(error) = state.process_new_packets() {
                    // The alert tells the client why; that it may not arrive changes nothing here.
                    let mut alert = Vec::new();
                    let _ = drain(&mut state, &mut alert)
                        .and_then(|()| socket.send(&[IoSlice::new(&alert)], false));
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            }
        }
    }

    pub(crate) const fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// Encrypts and sends all of `slices`; small neighbours share a record.
    pub(crate) fn send_all(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut cipher = Vec::new();
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let mut state = hold(&self.state);
            let taken = state.writer().write_vectored(slices)?;
            drain(&mut state, &mut cipher)?;
            drop(state);
            if taken == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut slices, taken);
            if cipher.len() >= CIPHER_BYTES_MAX {
                self.socket.send_all(&mut [IoSlice::new(&cipher)])?;
                cipher.clear();
            }
        }
        self.socket.send_all(&mut [IoSlice::new(&cipher)])
    }

    /// Tells the client that the stream ends here by intent.
    pub(crate) fn send_close_notify(&self) {
        let mut state = hold(&self.state);
        state.send_close_notify();
        let mut cipher = Vec::new();
        let _ =
            drain(&mut state, &mut cipher).and_then(|()| self.socket.send(&[IoSlice::new(&cipher)], false));
    }
}

/// Moves what is ready to be sent to `out`.
fn drain(state: &mut ServerConnection, out: &mut Vec<u8>) -> io::Result<()> {
    while state.wants_write() {
        state.write_tls(out)?;
    }
    Ok(())
}

/// The reading side of a session: encrypted bytes that have arrived.
pub(crate) struct TlsInput {
    session: Arc<TlsSession>,
    encrypted: Box<[u8]>,
    start: usize,
    end: usize,
}

impl TlsInput {
    pub(crate) fn new(session: Arc<TlsSession>) -> Self {
        Self { session, encrypted: vec![0; RECORD_BYTES].into_boxed_slice(), start: 0, end: 0 }
    }

    pub(crate) fn socket(&self) -> &Arc<Socket> {
        &self.session.socket
    }

    /// Reads and decrypts what there is, at least one byte; 0 at the end of the stream.
    ///
    /// What rustls wants to send in answer (a key update) goes out in front of the next reply, as TLS demands.
    pub(crate) fn receive(&mut self, dst: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut state = hold(&self.session.state);
            match state.reader().read(dst) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if self.start < self.end {
                self.start += state.read_tls(&mut &self.encrypted[self.start..self.end])?;
                state.process_new_packets().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
                continue;
            }
            drop(state);
            (self.start, self.end) = (0, self.session.socket.receive(&mut self.encrypted)?);
            if self.end == 0 {
                return Ok(0);
            }
        }
    }
}
