//! One entry point for each decoder of outside bytes, for fuzzers and property tests.
//!
//! Each takes arbitrary bytes and must return: no panic, no loop without end, and no allocation beyond a small
//! multiple of the input. What a server would answer is returned where a test can use it.

use forebay_block::check_bounds;

use crate::codec::{
    ChunkPayload, ContextReply, ContextRequest, ExportReply, ExportRequest, Greeting, Info, NbdError,
    OptionHeader, OptionReplyHeader, ReplyHeader, Request, ServerEntry,
};
use crate::export::{Catalog, ExportDescription};
use crate::negotiation::{Negotiation, Step, TlsPolicy};
use crate::transmission::{Session, Verdict};

/// A fuzz target: its name, which is that of its corpus, and its entry point.
pub type Target = (&'static str, fn(&[u8]));

/// The fuzz targets.
pub const TARGETS: [Target; 4] = [
    ("nbd_negotiation", any_negotiation),
    ("nbd_requests", requests),
    ("nbd_replies", replies),
    ("nbd_options", options),
];

struct OneExport;

impl OneExport {
    fn description() -> ExportDescription {
        ExportDescription {
            name: "volume".to_owned(),
            size_bytes: 1 << 30,
            read_only: false,
            request_bytes_max: 32 << 20,
            logical_block: 512,
            description: String::new(),
        }
    }
}

impl Catalog for OneExport {
    fn find(&self, name: &str) -> Option<ExportDescription> {
        (name.is_empty() || name == "volume").then(Self::description)
    }

    fn all(&self) -> Vec<ExportDescription> {
        vec![Self::description()]
    }
}

/// A whole negotiation fed from `bytes`. Returns what the server sent.
pub fn negotiation(policy: TlsPolicy, mut bytes: &[u8]) -> Vec<u8> {
    let mut sent = Vec::new();
    let mut negotiation = Negotiation::new(policy, &mut sent);
    while let Some((message, rest)) = bytes.split_at_checked(negotiation.needed()) {
        bytes = rest;
        match negotiation.take(message, &OneExport, &mut sent) {
            Step::Continue => {}
            Step::StartTls => negotiation.secured(),
            Step::Serve(_) | Step::End(_) => break,
        }
    }
    sent
}

/// A whole negotiation, of a server whose policy the first byte chooses.
pub fn any_negotiation(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    let policy = match first % 3 {
        0 => TlsPolicy::Off,
        1 => TlsPolicy::Offered,
        _ => TlsPolicy::Required,
    };
    negotiation(policy, rest);
}

/// Requests one after the other, each judged by a session with and without the negotiated extras. What would reach
/// the volume lies within it.
pub fn requests(bytes: &[u8]) {
    for header in bytes.chunks_exact(Request::BYTES) {
        let Ok(request) = Request::decode(header) else {
            continue;
        };
        for extras in [false, true] {
            let session = Session {
                size_bytes: 1 << 30,
                read_only: false,
                request_bytes_max: 32 << 20,
                structured: extras,
                base_allocation: extras,
            };
            match session.judge(&request) {
                Verdict::Submit(op) => assert_eq!(check_bounds(&op, session.size_bytes), Ok(())),
                Verdict::Write { .. } => assert!(
                    request.len as usize <= session.request_bytes_max
                        && request.offset + u64::from(request.len) <= session.size_bytes
                ),
                Verdict::Nothing | Verdict::Disconnect => {}
                Verdict::Refuse(refusal) => assert_ne!(refusal.error, NbdError::OK),
            }
        }
    }
}

/// Every decoder of a client.
pub fn replies(bytes: &[u8]) {
    let _ = Greeting::decode(bytes);
    let _ = OptionReplyHeader::decode(bytes);
    let _ = Info::decode(bytes);
    let _ = ExportReply::decode(bytes);
    let _ = ServerEntry::decode(bytes);
    let _ = ContextReply::decode(bytes);
    let _ = ReplyHeader::needed(bytes);
    if let Ok(ReplyHeader::Chunk(header)) = ReplyHeader::decode(bytes.get(..20).unwrap_or(bytes)) {
        let _ = ChunkPayload::decode(header.kind, bytes.get(20..).unwrap_or_default());
    }
    if let Some((kind, payload)) = bytes.split_first_chunk::<2>()
        && let Ok(ChunkPayload::Status { extents, .. }) =
            ChunkPayload::decode(u16::from_be_bytes(*kind), payload)
    {
        assert_eq!(ChunkPayload::extents(extents).count(), extents.len() / 8);
    }
}

/// Every decoder of an option's header and data.
pub fn options(bytes: &[u8]) {
    let _ = OptionHeader::decode(bytes);
    if let Ok(request) = ExportRequest::decode(bytes) {
        let _ = request.asks_for(0);
    }
    if let Ok(request) = ContextRequest::decode(bytes) {
        assert_eq!(request.queries().count(), request.query_count as usize);
    }
}
