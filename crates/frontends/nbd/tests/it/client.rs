//! A blocking client made of the crate's codec.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use forebay_nbd::codec::{
    BASE_ALLOCATION, ChunkPayload, ClientFlags, ContextReply, ContextRequest, ExportRequest, Extent,
    Greeting, Info, NbdError, OptionHeader, OptionReplyHeader, ReplyHeader, Request, ServerEntry, chunk,
    chunk_flag, command, handshake_flag, info, option, option_reply,
};

/// Answers to one option: kind and payload, the last being `ACK` or an error.
pub type Answers = Vec<(u32, Vec<u8>)>;

/// Outcome of a request: data of a read, nothing, or an error with its message.
pub type Outcome = Result<Vec<u8>, (NbdError, String)>;

/// A reply as it came.
#[derive(Debug, PartialEq, Eq)]
pub struct Answered {
    pub cookie: u64,
    pub outcome: Outcome,
    pub extents: Vec<Extent>,
    pub structured: bool,
}

pub struct Client {
    pub stream: UnixStream,
    pub greeting: Greeting,
    next_cookie: u64,
}

impl Client {
    pub fn connect(path: &Path) -> Self {
        Self::connect_with(path, handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES)
    }

    pub fn connect_with(path: &Path, flags: u16) -> Self {
        let mut stream = UnixStream::connect(path).unwrap();
        // A test whose server does not answer fails instead of hanging.
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut greeting = [0; Greeting::BYTES];
        stream.read_exact(&mut greeting).unwrap();
        let mut client = Self { stream, greeting: Greeting::decode(&greeting).unwrap(), next_cookie: 1 };
        let mut out = Vec::new();
        ClientFlags(flags).encode(&mut out);
        client.send(&out);
        client
    }

    /// A second half of a connection whose transmission has begun.
    pub fn adopt(stream: UnixStream) -> Self {
        Self { stream, greeting: Greeting { flags: 0 }, next_cookie: 1 }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn receive(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Whether the server closed the connection, having sent nothing more.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }

    pub fn half_close(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    pub fn send_option(&mut self, number: u32, data: &[u8]) {
        let mut out = Vec::new();
        OptionHeader { option: number, len: data.len() as u32 }.encode(&mut out);
        out.extend_from_slice(data);
        self.send(&out);
    }

    /// Sends an option and collects its answers.
    pub fn option(&mut self, number: u32, data: &[u8]) -> Answers {
        self.send_option(number, data);
        self.answers(number)
    }

    pub fn answers(&mut self, number: u32) -> Answers {
        let mut answers = Vec::new();
        loop {
            let header = OptionReplyHeader::decode(&self.receive(OptionReplyHeader::BYTES)).unwrap();
            assert_eq!(header.option, number);
            answers.push((header.kind, self.receive(header.len as usize)));
            if header.kind == option_reply::ACK || header.is_error() {
                return answers;
            }
        }
    }

    /// The kind of the last answer to an option.
    pub fn verdict(&mut self, number: u32, data: &[u8]) -> u32 {
        self.option(number, data).pop().unwrap().0
    }

    /// `GO`: size and flags, or the kind of error.
    pub fn go(&mut self, export: &str) -> Result<(u64, u16), u32> {
        let mut data = Vec::new();
        ExportRequest::encode(export, &[info::BLOCK_SIZE], &mut data);
        let answers = self.option(option::GO, &data);
        let (kind, _) = answers.last().unwrap();
        if *kind != option_reply::ACK {
            return Err(*kind);
        }
        let found = answers.iter().filter(|(kind, _)| *kind == option_reply::INFO);
        let mut infos = found.filter_map(|(_, payload)| Info::decode(payload).unwrap());
        infos
            .find_map(|i| if let Info::Export { size, flags } = i { Some((size, flags)) } else { None })
            .ok_or(0)
    }

    pub fn set_context(&mut self, export: &str, queries: &[&str]) -> Answers {
        let mut data = Vec::new();
        ContextRequest::encode(export, queries, &mut data);
        self.option(option::SET_META_CONTEXT, &data)
    }

    pub fn negotiate_all(&mut self, export: &str) {
        assert_eq!(self.verdict(option::STRUCTURED_REPLY, &[]), option_reply::ACK);
        let answers = self.set_context(export, &[BASE_ALLOCATION]);
        assert_eq!(ContextReply::decode(&answers[0].1).unwrap().name, BASE_ALLOCATION);
        self.go(export).unwrap();
    }

    pub fn list(&mut self) -> Vec<String> {
        let mut answers = self.option(option::LIST, &[]);
        assert_eq!(answers.pop().unwrap().0, option_reply::ACK);
        answers.iter().map(|(_, payload)| ServerEntry::decode(payload).unwrap().name.to_owned()).collect()
    }

    /// Sends a request without waiting; returns its cookie.
    pub fn start(&mut self, command: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let mut out = Vec::new();
        Request { flags, command, cookie, offset, len }.encode(&mut out);
        out.extend_from_slice(data);
        self.send(&out);
        cookie
    }

    /// Receives one reply; `read_bytes` is the length that a simple reply to a read carries.
    pub fn finish(&mut self, read_bytes: usize) -> Answered {
        let mut head = self.receive(ReplyHeader::MAGIC_BYTES);
        let needed = ReplyHeader::needed(&head).unwrap();
        head.extend(self.receive(needed - ReplyHeader::MAGIC_BYTES));
        match ReplyHeader::decode(&head).unwrap() {
            ReplyHeader::Simple(reply) if reply.error == NbdError::OK => Answered {
                cookie: reply.cookie,
                outcome: Ok(self.receive(read_bytes)),
                extents: Vec::new(),
                structured: false,
            },
            ReplyHeader::Simple(reply) => Answered {
                cookie: reply.cookie,
                outcome: Err((reply.error, String::new())),
                extents: Vec::new(),
                structured: false,
            },
            ReplyHeader::Chunk(header) => {
                assert_eq!(header.flags, chunk_flag::DONE);
                assert!(header.kind != chunk::OFFSET_HOLE);
                let payload = self.receive(header.len as usize);
                let (outcome, extents) = match ChunkPayload::decode(header.kind, &payload).unwrap() {
                    ChunkPayload::Data { data, .. } => (Ok(data.to_vec()), Vec::new()),
                    ChunkPayload::Status { extents, .. } => {
                        (Ok(Vec::new()), ChunkPayload::extents(extents).collect())
                    }
                    ChunkPayload::Error { error, message, .. } => {
                        (Err((error, message.to_owned())), Vec::new())
                    }
                    ChunkPayload::None | ChunkPayload::Hole { .. } => (Ok(Vec::new()), Vec::new()),
                };
                Answered { cookie: header.cookie, outcome, extents, structured: true }
            }
        }
    }

    fn call(&mut self, command: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> Answered {
        let cookie = self.start(command, flags, offset, len, data);
        let answered = self.finish(if command == command::READ { len as usize } else { 0 });
        assert_eq!(answered.cookie, cookie);
        answered
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Outcome {
        self.call(command::READ, 0, offset, len, &[]).outcome
    }

    pub fn write(&mut self, offset: u64, data: &[u8], flags: u16) -> Outcome {
        self.call(command::WRITE, flags, offset, data.len() as u32, data).outcome
    }

    /// A request without data.
    pub fn plain(&mut self, command: u16, flags: u16, offset: u64, len: u32) -> Answered {
        self.call(command, flags, offset, len, &[])
    }

    /// The error that a request without data meets.
    pub fn error(&mut self, command: u16, flags: u16, offset: u64, len: u32) -> NbdError {
        self.plain(command, flags, offset, len).outcome.unwrap_err().0
    }
}
