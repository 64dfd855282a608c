//! The least of an NBD client: enough to write, read and flush, and independent of the server's code.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const OPT_EXPORT_NAME: u32 = 1;
const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_FLUSH: u16 = 3;
const CMD_WRITE_ZEROES: u16 = 6;

/// A connection to one export.
pub struct NbdClient {
    stream: UnixStream,
    /// Size of the export in bytes.
    pub size: u64,
    handle: u64,
}

impl NbdClient {
    /// Opens the export `name` of the server on the unix socket `path`.
    pub fn connect(path: &Path, name: &str) -> Self {
        let mut stream = UnixStream::connect(path).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, no zeroes after the export's description.
        stream.write_all(&3u32.to_be_bytes()).unwrap();
        stream.write_all(b"IHAVEOPT").unwrap();
        stream.write_all(&OPT_EXPORT_NAME.to_be_bytes()).unwrap();
        stream.write_all(&(name.len() as u32).to_be_bytes()).unwrap();
        stream.write_all(name.as_bytes()).unwrap();
        let mut description = [0; 10];
        stream.read_exact(&mut description).unwrap();
        let size = u64::from_be_bytes(description[..8].try_into().unwrap());
        Self { stream, size, handle: 0 }
    }

    /// Sends a request and returns the server's error number; 0 is success.
    fn request(&mut self, command: u16, offset: u64, len: u32, data: &[u8]) -> u32 {
        self.handle += 1;
        let mut message = 0x2560_9513_u32.to_be_bytes().to_vec();
        message.extend(0u16.to_be_bytes());
        message.extend(command.to_be_bytes());
        message.extend(self.handle.to_be_bytes());
        message.extend(offset.to_be_bytes());
        message.extend(len.to_be_bytes());
        message.extend(data);
        self.stream.write_all(&message).unwrap();
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        assert_eq!(reply[8..], self.handle.to_be_bytes());
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }

    /// Writes and expects success.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        assert_eq!(self.request(CMD_WRITE, offset, data.len() as u32, data), 0);
    }

    /// Reads and expects success.
    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        assert_eq!(self.request(CMD_READ, offset, len as u32, &[]), 0);
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data).unwrap();
        data
    }

    /// Writes zeroes and expects success.
    pub fn zero(&mut self, offset: u64, len: u32) {
        assert_eq!(self.request(CMD_WRITE_ZEROES, offset, len, &[]), 0);
    }

    /// Flushes and expects success.
    pub fn flush(&mut self) {
        assert_eq!(self.request(CMD_FLUSH, 0, 0, &[]), 0);
    }

    /// Writes and returns the error number.
    pub fn try_write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.request(CMD_WRITE, offset, data.len() as u32, data)
    }
}
