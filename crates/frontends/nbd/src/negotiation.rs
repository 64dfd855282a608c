//! The server's side of the negotiation, as a state machine without I/O.
//!
//! ```text
//!            4 bytes           16 bytes           len bytes
//!  greeting ────────► flags ──────────► header ───────────► data ──┐
//!                                         ▲  ▲                     │ answer
//!                                         │  └─── discard ◄── too long
//!                                         └────────────────────────┴──► serve | start TLS | end
//! ```
//!
//! The driver reads exactly [`Negotiation::needed`] bytes, never more, and hands them to [`Negotiation::take`].
//! Reading nothing ahead is what makes `STARTTLS` safe: no byte that was sent in the clear can be taken for one that
//! came under TLS.

use forebay_block::SECTOR_BYTES;

use crate::codec::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, BlockSizes, ClientFlags, ContextReply, ContextRequest, DecodeError,
    ExportReply, ExportRequest, Greeting, Info, OptionHeader, OptionReplyHeader, STRING_BYTES_MAX,
    ServerEntry, handshake_flag, info, option, option_reply,
};
use crate::export::{Catalog, ExportDescription};

/// Longest option that is read, in bytes; a longer one is answered with "too big". Enough for a name, and fifteen
/// queries, of the protocol's greatest length.
pub const OPTION_BYTES_MAX: usize = 64 * 1024;

/// Longest option that is skipped to answer it; the connection of a longer one is closed.
pub const OPTION_SKIP_BYTES_MAX: usize = 1024 * 1024;

/// Bytes that are read at a time while an option is skipped.
const SKIP_CHUNK_BYTES: usize = 4096;

/// Whether a server has TLS and insists on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPolicy {
    /// No TLS; a client that asks for it is told so.
    Off,
    /// A client may use TLS.
    Offered,
    /// A client must use TLS before it learns anything else.
    Required,
}

/// What a client chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The export, by its canonical name.
    pub export: ExportDescription,
    /// Structured replies were negotiated.
    pub structured: bool,
    /// Block status by `base:allocation` was negotiated.
    pub base_allocation: bool,
}

/// Why a negotiation ended without transmission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client said so.
    Aborted,
    /// The client asked for what cannot be answered but by closing.
    Refused(&'static str),
    /// The client does not speak the protocol.
    Malformed(DecodeError),
    /// An option is longer than is worth skipping.
    OptionTooLong(u32),
}

/// What the driver does after it has sent what [`Negotiation::take`] appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read the next [`Negotiation::needed`] bytes.
    Continue,
    /// Do the TLS handshake, then call [`Negotiation::secured`].
    StartTls,
    /// Serve the export.
    Serve(Box<Choice>),
    /// Close.
    End(Ending),
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Flags,
    Header,
    Data(OptionHeader),
    Discard { option: u32, left: usize },
}

/// One connection's negotiation.
#[derive(Debug)]
pub struct Negotiation {
    policy: TlsPolicy,
    phase: Phase,
    secure: bool,
    no_zeroes: bool,
    structured: bool,
    /// Canonical name of the export for which `base:allocation` was chosen.
    allocation_of: Option<String>,
}

impl Negotiation {
    /// Starts a negotiation; appends the greeting.
    pub fn new(policy: TlsPolicy, out: &mut Vec<u8>) -> Self {
        Greeting { flags: handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES }.encode(out);
        Self {
            policy,
            phase: Phase::Flags,
            secure: false,
            no_zeroes: false,
            structured: false,
            allocation_of: None,
        }
    }

    /// How many bytes [`Negotiation::take`] wants next; from 1 to [`OPTION_BYTES_MAX`].
    pub fn needed(&self) -> usize {
        match self.phase {
            Phase::Flags => ClientFlags::BYTES,
            Phase::Header => OptionHeader::BYTES,
            Phase::Data(header) => header.len as usize,
            Phase::Discard { left, .. } => left.min(SKIP_CHUNK_BYTES),
        }
    }

    /// Takes exactly [`Negotiation::needed`] bytes from the client and appends what is to be sent.
    pub fn take(&mut self, bytes: &[u8], exports: &dyn Catalog, out: &mut Vec<u8>) -> Step {
        match self.phase {
            Phase::Flags => match ClientFlags::decode(bytes) {
                Ok(ClientFlags(flags)) => {
                    self.no_zeroes = flags & handshake_flag::NO_ZEROES != 0;
                    self.phase = Phase::Header;
                    Step::Continue
                }
                Err(e) => Step::End(Ending::Malformed(e)),
            },
            Phase::Header => match OptionHeader::decode(bytes) {
                Ok(header) => self.header(header, exports, out),
                Err(e) => Step::End(Ending::Malformed(e)),
            },
            Phase::Data(header) => {
                self.phase = Phase::Header;
                self.option(header.option, bytes, exports, out)
            }
            Phase::Discard { option, left } => {
                let left = left.saturating_sub(bytes.len());
                self.phase = if left > 0 { Phase::Discard { option, left } } else { Phase::Header };
                if left == 0 {
                    answer_error(out, option, option_reply::ERR_TOO_BIG, "option is too long");
                }
                Step::Continue
            }
        }
    }

    /// TLS is up: whatever was negotiated in the clear is forgotten, as the protocol demands.
    pub fn secured(&mut self) {
        self.secure = true;
        self.structured = false;
        self.allocation_of = None;
    }

    fn header(&mut self, header: OptionHeader, exports: &dyn Catalog, out: &mut Vec<u8>) -> Step {
        let len = header.len as usize;
        if len == 0 {
            return self.option(header.option, &[], exports, out);
        }
        if len <= OPTION_BYTES_MAX {
            self.phase = Phase::Data(header);
        } else if len <= OPTION_SKIP_BYTES_MAX && header.option != option::EXPORT_NAME {
            self.phase = Phase::Discard { option: header.option, left: len };
        } else {
            return Step::End(Ending::OptionTooLong(header.len));
        }
        Step::Continue
    }

    fn option(&mut self, number: u32, data: &[u8], exports: &dyn Catalog, out: &mut Vec<u8>) -> Step {
        let in_the_clear = self.policy == TlsPolicy::Required && !self.secure;
        if in_the_clear && !matches!(number, option::STARTTLS | option::ABORT | option::EXPORT_NAME) {
            answer_error(out, number, option_reply::ERR_TLS_REQD, "this server requires TLS");
            return Step::Continue;
        }
        match number {
            option::EXPORT_NAME if in_the_clear => Step::End(Ending::Refused("client does not use TLS")),
            option::EXPORT_NAME => self.export_name(data, exports, out),
            option::ABORT => {
                answer(out, number, option_reply::ACK, &[]);
                Step::End(Ending::Aborted)
            }
            option::LIST => list(data, exports, out),
            option::STARTTLS => self.start_tls(data, out),
            option::INFO | option::GO => self.describe(number, data, exports, out),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                answer(out, number, option_reply::ACK, &[]);
                Step::Continue
            }
            option::STRUCTURED_REPLY => refuse(out, number, "option takes no data"),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.contexts(number, data, exports, out);
                Step::Continue
            }
            _ => {
                answer_error(out, number, option_reply::ERR_UNSUP, "option is not supported");
                Step::Continue
            }
        }
    }

    fn export_name(&mut self, data: &[u8], exports: &dyn Catalog, out: &mut Vec<u8>) -> Step {
        let found = std::str::from_utf8(data).ok().and_then(|name| exports.find(name));
        let Some(export) = found else {
            return Step::End(Ending::Refused("there is no such export"));
        };
        let reply = ExportReply { size: export.size_bytes, flags: export.flags(self.structured) };
        reply.encode(self.no_zeroes, out);
        Step::Serve(Box::new(self.choice(export)))
    }

    fn start_tls(&mut self, data: &[u8], out: &mut Vec<u8>) -> Step {
        if !data.is_empty() {
            return refuse(out, option::STARTTLS, "option takes no data");
        }
        if self.secure {
            return refuse(out, option::STARTTLS, "TLS is in use already");
        }
        if self.policy == TlsPolicy::Off {
            answer_error(out, option::STARTTLS, option_reply::ERR_POLICY, "TLS is not configured");
            return Step::Continue;
        }
        answer(out, option::STARTTLS, option_reply::ACK, &[]);
        Step::StartTls
    }

    /// Answers `INFO` and `GO`. Block sizes are told even to a client that did not ask: it may then keep to them.
    fn describe(&mut self, number: u32, data: &[u8], exports: &dyn Catalog, out: &mut Vec<u8>) -> Step {
        let request = match ExportRequest::decode(data) {
            Ok(request) => request,
            Err(e) => return refuse(out, number, &e.to_string()),
        };
        let Some(export) = exports.find(request.name) else {
            answer_error(out, number, option_reply::ERR_UNKNOWN, "there is no such export");
            return Step::Continue;
        };
        let flags = export.flags(self.structured);
        answer_info(out, number, &Info::Export { size: export.size_bytes, flags });
        if request.asks_for(info::NAME) {
            answer_info(out, number, &Info::Name(&export.name));
        }
        if request.asks_for(info::DESCRIPTION) && !export.description.is_empty() {
            answer_info(out, number, &Info::Description(&export.description));
        }
        answer_info(out, number, &Info::BlockSize(export.block_sizes()));
        answer(out, number, option_reply::ACK, &[]);
        if number == option::GO { Step::Serve(Box::new(self.choice(export))) } else { Step::Continue }
    }

    fn contexts(&mut self, number: u32, data: &[u8], exports: &dyn Catalog, out: &mut Vec<u8>) {
        let setting = number == option::SET_META_CONTEXT;
        if setting {
            // A failed choice leaves none: the client must not take an earlier one for valid.
            self.allocation_of = None;
            if !self.structured {
                refuse(out, number, "structured replies must be negotiated first");
                return;
            }
        }
        let request = match ContextRequest::decode(data) {
            Ok(request) => request,
            Err(e) => {
                refuse(out, number, &e.to_string());
                return;
            }
        };
        let Some(export) = exports.find(request.export) else {
            answer_error(out, number, option_reply::ERR_UNKNOWN, "there is no such export");
            return;
        };
        let chosen = if setting {
            request.queries().any(|q| q == BASE_ALLOCATION)
        } else {
            request.query_count == 0 || request.queries().any(|q| q == BASE_ALLOCATION || q == "base:")
        };
        if chosen {
            let id = if setting { BASE_ALLOCATION_ID } else { 0 };
            let mut payload = Vec::new();
            ContextReply { id, name: BASE_ALLOCATION }.encode(&mut payload);
            answer(out, number, option_reply::META_CONTEXT, &payload);
        }
        if setting && chosen {
            self.allocation_of = Some(export.name);
        }
        answer(out, number, option_reply::ACK, &[]);
    }

    fn choice(&self, export: ExportDescription) -> Choice {
        let base_allocation = self.allocation_of.as_deref() == Some(export.name.as_str());
        Choice { export, structured: self.structured, base_allocation }
    }
}

fn list(data: &[u8], exports: &dyn Catalog, out: &mut Vec<u8>) -> Step {
    if !data.is_empty() {
        return refuse(out, option::LIST, "option takes no data");
    }
    for export in exports.all() {
        let mut payload = Vec::new();
        ServerEntry { name: &export.name, description: &export.description }.encode(&mut payload);
        answer(out, option::LIST, option_reply::SERVER, &payload);
    }
    answer(out, option::LIST, option_reply::ACK, &[]);
    Step::Continue
}

fn answer(out: &mut Vec<u8>, option: u32, kind: u32, payload: &[u8]) {
    OptionReplyHeader { option, kind, len: payload.len() as u32 }.encode(out);
    out.extend_from_slice(payload);
}

fn answer_error(out: &mut Vec<u8>, option: u32, kind: u32, message: &str) {
    answer(out, option, kind, message.as_bytes());
}

fn answer_info(out: &mut Vec<u8>, option: u32, info: &Info<'_>) {
    let mut payload = Vec::new();
    info.encode(&mut payload);
    answer(out, option, option_reply::INFO, &payload);
}

fn refuse(out: &mut Vec<u8>, option: u32, message: &str) -> Step {
    answer_error(out, option, option_reply::ERR_INVALID, message);
    Step::Continue
}

/// The sizes that an export with such logical blocks and requests of at most `request_bytes_max` bytes advertises. A client that
/// does not ask for them may send what is made of whole sectors all the same.
pub(crate) fn block_sizes(logical_block: u32, request_bytes_max: usize) -> BlockSizes {
    const PREFERRED: u32 = 4096;
    let minimum = logical_block.max(SECTOR_BYTES as u32);
    let maximum = u32::try_from(request_bytes_max).unwrap_or(u32::MAX) / minimum * minimum;
    let maximum = maximum.max(minimum);
    let preferred = if maximum < PREFERRED { minimum } else { PREFERRED.max(minimum) };
    BlockSizes { minimum, preferred, maximum }
}

/// Whether `name` can be an export's name: the protocol's strings are short, and the empty name means "the default".
pub(crate) const fn is_valid_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= STRING_BYTES_MAX
}

#[cfg(test)]
mod tests;
