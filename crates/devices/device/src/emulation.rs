//! The text that names an emulated device: `emulate:KIND:file=PATH[,key=value...]`.

use std::fmt;
use std::path::PathBuf;

use forebay_emulate::{Kind, Settings};

/// What is said of a device is read elsewhere, too: in a log, in another directory.
pub(crate) fn absolute(path: &str) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// An emulated device: the file with its data, and the model that says how long it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmulateSpec {
    /// The file, or block device.
    pub file: PathBuf,
    /// Whether flushes and durable writes reach the file's medium. If not, they cost what the model says and no more,
    /// and the data survives the death of the process only.
    pub sync: bool,
    /// The model.
    pub settings: Settings,
}

impl EmulateSpec {
    /// Reads what follows `emulate:`.
    ///
    /// # Errors
    /// A sentence that says what is expected.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        const SHAPE: &str = "an emulated device is emulate:KIND:file=PATH[,KEY=VALUE...]";
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut settings: Settings = kind.parse().map_err(|e| format!("{e}; {SHAPE}"))?;
        let (mut file, mut sync) = (None, true);
        for word in rest.split(',').filter(|_| !rest.is_empty()) {
            let (key, value) =
                word.split_once('=').ok_or_else(|| format!("'{word}' is not KEY=VALUE; {SHAPE}"))?;
            match (key, value) {
                ("file", "") => {}
                ("file", _) if file.is_some() => return Err("file= is given twice".to_owned()),
                ("file", path) => file = Some(absolute(path)),
                ("sync", "yes") => sync = true,
                ("sync", "no") => sync = false,
                ("sync", _) => return Err(format!("sync={value}: sync is yes or no")),
                _ => settings.set(key, value).map_err(|e| e.to_string())?,
            }
        }
        settings.check().map_err(|e| e.to_string())?;
        let file = file.ok_or_else(|| format!("file=PATH is missing; {SHAPE}"))?;
        Ok(Self { file, sync, settings })
    }

    /// The kinds, for a sentence.
    pub(crate) fn kinds() -> String {
        Kind::ALL.map(Kind::as_str).join(", ")
    }
}

impl fmt::Display for EmulateSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = self.settings.to_string();
        let (kind, changed) =
            settings.split_once(',').map_or((settings.as_str(), None), |(k, c)| (k, Some(c)));
        write!(f, "emulate:{kind}:file={}", self.file.display())?;
        if !self.sync {
            f.write_str(",sync=no")?;
        }
        changed.map_or(Ok(()), |changed| write!(f, ",{changed}"))
    }
}
