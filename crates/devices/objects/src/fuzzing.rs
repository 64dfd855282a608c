//! Entry point of the fuzz target `object`: whatever lies in a store is read without a panic and in bounded memory.

use crc_fast::{CrcAlgorithm, checksum};

use crate::codec::{
    Damage, ExtentPart, Fence, HEADER_BYTES, Identity, LogHead, Manifest, ObjectPart, Pointer, VolumeMark,
    claim_of, head_bytes, identity_of,
};
use crate::state::State;

/// An object. Random bytes never have a right checksum, so they are read as they are, and then with magic, version and checksum made right.
pub fn object(data: &[u8]) {
    read(data);
    let mut bytes = data.to_vec();
    if bytes.len() >= HEADER_BYTES {
        bytes[..8].copy_from_slice(b"FBOBJECT");
        bytes[8..14].copy_from_slice(&[0, 0, 0, 0, 1, 0]);
        if let Ok(len) = head_bytes(&bytes)
            && len <= bytes.len()
        {
            let crc = checksum(CrcAlgorithm::Crc32Iscsi, &bytes[..len]) as u32;
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        }
        read(&bytes);
    }
}

/// Reads it as each kind of object, and as what it says to be it is believed.
fn read(bytes: &[u8]) {
    let identity = identity_of(bytes).unwrap_or(Identity { volume: [0; 16], at: Default::default() });
    let mut state = State::empty(identity.volume, 1 << 20, 16);
    let size = bytes.len() as u64;
    if let Ok(head) = LogHead::decode(bytes, size, &identity) {
        let before = head.encode(&vec![0; head.payload_sectors() as usize * 512]);
        let again = LogHead::decode(&before, before.len() as u64, &identity);
        assert_eq!(again.as_ref(), Ok(&head), "what was read is written as it was");
        let _ = state.apply(&head, HEADER_BYTES as u32);
    }
    let _ = VolumeMark::decode(bytes);
    let _ = claim_of(bytes, identity.volume, identity.at.epoch);
    let _ = Fence::decode(bytes, &identity);
    let _ = Pointer::decode(bytes, &identity);
    if let Ok(manifest) = Manifest::decode(bytes, &identity) {
        assert_eq!(Manifest::decode(&manifest.encode(), &identity).as_ref(), Ok(&manifest));
        state.begin_with(&manifest);
    }
    if let Ok(part) = part(bytes, |number| ObjectPart::decode(bytes, &identity, number)) {
        let _ = state.load_objects(&part.0);
    }
    if let Ok(part) = part(bytes, |number| ExtentPart::decode(bytes, &identity, number)) {
        let _ = state.load_extents(&part);
    }
}

/// A part is read by its number, which stands in it.
fn part<T>(bytes: &[u8], decode: impl Fn(u32) -> Result<T, Damage>) -> Result<T, Damage> {
    let number = bytes.get(112..116).and_then(|number| number.try_into().ok()).map_or(0, u32::from_le_bytes);
    decode(number)
}
