//! The first bytes of a connection.

use super::DecodeError;
use super::cursor::Cursor;

const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Precedes the server's flags and each option.
pub(super) const IHAVEOPT: u64 = 0x4948_4156_454f_5054;

/// Flags of the greeting and of the client's answer.
pub mod handshake_flag {
    /// Options may be refused without closing the connection.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// The answer to `EXPORT_NAME` may leave out its 124 zero bytes.
    pub const NO_ZEROES: u16 = 2;
}

/// What the server sends first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Bits of [`handshake_flag`].
    pub flags: u16,
}

impl Greeting {
    /// Length in bytes.
    pub const BYTES: usize = 18;

    /// Appends the greeting.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&NBDMAGIC.to_be_bytes());
        out.extend_from_slice(&IHAVEOPT.to_be_bytes());
        out.extend_from_slice(&self.flags.to_be_bytes());
    }

    /// Reads a greeting of the newstyle negotiation.
    ///
    /// # Errors
    /// [`DecodeError::Magic`] also for the oldstyle negotiation, which has other magic numbers.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        for expected in [NBDMAGIC, IHAVEOPT] {
            let magic = cursor.u64()?;
            if magic != expected {
                return Err(DecodeError::Magic(magic));
            }
        }
        let flags = cursor.u16()?;
        cursor.end()?;
        Ok(Self { flags })
    }
}

/// The client's answer to the greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientFlags(
    /// Bits of [`handshake_flag`].
    pub u16,
);

impl ClientFlags {
    /// Length in bytes.
    pub const BYTES: usize = 4;

    /// Appends the flags.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&u32::from(self.0).to_be_bytes());
    }

    /// Reads the flags.
    ///
    /// # Errors
    /// [`DecodeError::UnknownValue`] for a flag that the protocol does not define; the server must then close.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let flags = cursor.u32()?;
        cursor.end()?;
        let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        if flags & !known != 0 {
            return Err(DecodeError::UnknownValue(flags));
        }
        Ok(Self(flags as u16))
    }
}
