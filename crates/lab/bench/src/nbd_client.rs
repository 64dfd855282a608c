//! As much of an NBD client as a load needs: writes over a unix socket.

use std::io::{self, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use forebay_nbd::codec::{
    ClientFlags, ExportReply, Greeting, OptionHeader, ReplyHeader, Request, SimpleReply, command,
    handshake_flag, option,
};

/// A connection in the transmission phase.
pub(crate) struct NbdClient {
    stream: UnixStream,
}

fn protocol(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server breaks the protocol: {error}"))
}

impl NbdClient {
    /// Connects to the default export.
    pub(crate) fn connect(socket: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        let mut greeting = [0; Greeting::BYTES];
        stream.read_exact(&mut greeting)?;
        Greeting::decode(&greeting).map_err(protocol)?;
        let mut out = Vec::new();
        ClientFlags(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).encode(&mut out);
        OptionHeader { option: option::EXPORT_NAME, len: 0 }.encode(&mut out);
        stream.write_all(&out)?;
        let mut reply = [0; ExportReply::BYTES];
        stream.read_exact(&mut reply)?;
        ExportReply::decode(&reply).map_err(protocol)?;
        Ok(Self { stream })
    }

    /// The connection, for who speaks the rest of the protocol.
    pub(crate) fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// Sends a write; [`NbdClient::reply`] brings the cookie back.
    pub(crate) fn write(&mut self, cookie: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut head = Vec::with_capacity(Request::BYTES);
        Request { flags: 0, command: command::WRITE, cookie, offset, len: data.len() as u32 }
            .encode(&mut head);
        let sent = self.stream.write_vectored(&[IoSlice::new(&head), IoSlice::new(data)])?;
        if sent < head.len() {
            self.stream.write_all(&head[sent..])?;
            return self.stream.write_all(data);
        }
        self.stream.write_all(&data[sent - head.len()..])
    }

    /// Waits for the answer to a write and returns its cookie.
    pub(crate) fn reply(&mut self) -> io::Result<u64> {
        let mut bytes = [0; SimpleReply::BYTES];
        self.stream.read_exact(&mut bytes)?;
        match ReplyHeader::decode(&bytes).map_err(protocol)? {
            ReplyHeader::Simple(SimpleReply { error, cookie }) if error.0 == 0 => Ok(cookie),
            ReplyHeader::Simple(SimpleReply { error, .. }) => {
                let why = forebay_block::describe_errno(error.0 as i32);
                Err(io::Error::other(format!("the server fails a write: {why}")))
            }
            ReplyHeader::Chunk(_) => Err(protocol("a structured reply, which was not asked for")),
        }
    }
}
