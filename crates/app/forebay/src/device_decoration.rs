//! Decorators for the devices of a volume, as `serve --decorate` names them.

use std::str::FromStr;

use forebay_device::decorate::{BadDecoration, Decoration};

/// A decorator for one of a volume's devices, such as `cache:inject:write:eio:every=100`.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceDecoration {
    /// The cache, else the backing.
    pub of_cache: bool,
    /// What is put around it.
    pub decoration: Decoration,
}

impl FromStr for DeviceDecoration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (role, decoration) = text.split_once(':').unwrap_or((text, ""));
        let of_cache = match role {
            "cache" => true,
            "backing" => false,
            _ => return Err(format!("'{text}' begins neither with cache: nor with backing:")),
        };
        Ok(Self { of_cache, decoration: decoration.parse().map_err(|e: BadDecoration| e.to_string())? })
    }
}
