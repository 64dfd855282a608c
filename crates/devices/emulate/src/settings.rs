//! Kinds of devices and their parameters, by name.

use std::fmt;
use std::str::FromStr;

use crate::disk::DiskSettings;
use crate::flash::FlashSettings;
use crate::memory::MemorySettings;
use crate::parameter::{BadSetting, Parameter};
use crate::remote::RemoteSettings;

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A disk of 10,000 rpm.
    Hdd10k,
    /// A disk of 7,200 rpm.
    Hdd7k2,
    /// An SSD behind SATA.
    SsdSata,
    /// An SSD behind PCIe.
    SsdNvme,
    /// A store behind a network.
    Remote,
    /// Memory that survives a power cut.
    Nvdram,
}

impl Kind {
    /// Every kind, in the order of the documentation.
    pub const ALL: [Self; 6] =
        [Self::Hdd10k, Self::Hdd7k2, Self::SsdSata, Self::SsdNvme, Self::Remote, Self::Nvdram];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hdd10k => "hdd-10k",
            Self::Hdd7k2 => "hdd-7k2",
            Self::SsdSata => "ssd-sata",
            Self::SsdNvme => "ssd-nvme",
            Self::Remote => "remote",
            Self::Nvdram => "nvdram",
        }
    }

    /// What it is like, in a phrase.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Hdd10k => "disk, 10,000 rpm",
            Self::Hdd7k2 => "disk, 7,200 rpm",
            Self::SsdSata => "SSD, SATA",
            Self::SsdNvme => "SSD, NVMe",
            Self::Remote => "network block store",
            Self::Nvdram => "NV-DRAM",
        }
    }
}

/// Parameters of a device. Two kinds may differ in their defaults alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settings {
    /// Disks.
    Disk(Kind, DiskSettings),
    /// SSDs.
    Flash(Kind, FlashSettings),
    /// Remote stores.
    Remote(RemoteSettings),
    /// NV-DRAM.
    Memory(MemorySettings),
}

impl Settings {
    /// The defaults of a kind.
    pub fn of(kind: Kind) -> Self {
        match kind {
            Kind::Hdd10k => Self::Disk(kind, DiskSettings::SAVVIO_10K4),
            Kind::Hdd7k2 => Self::Disk(kind, DiskSettings::CONSTELLATION_ES3),
            Kind::SsdSata => Self::Flash(kind, FlashSettings::SATA),
            Kind::SsdNvme => Self::Flash(kind, FlashSettings::NVME),
            Kind::Remote => Self::Remote(RemoteSettings::GP3),
            Kind::Nvdram => Self::Memory(MemorySettings::NVDRAM),
        }
    }

    /// The kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Disk(kind, _) | Self::Flash(kind, _) => *kind,
            Self::Remote(_) => Kind::Remote,
            Self::Memory(_) => Kind::Nvdram,
        }
    }

    /// Commands that the device takes at a time. More wait in front of a disk or a remote store; an SSD and memory take in whatever
    /// comes, but the interface of a SATA disk has 32 tags (NCQ), that of NVMe 1,024 in a common queue, and a block driver for memory has
    /// copied 32 commands before anybody could have come between.
    pub fn depth(&self) -> usize {
        let depth = match self {
            Self::Disk(_, disk) => disk.queue,
            Self::Flash(Kind::SsdNvme, _) => 1024,
            Self::Flash(..) | Self::Memory(_) => 32,
            Self::Remote(remote) => remote.window,
        };
        usize::try_from(depth).unwrap_or(usize::MAX)
    }

    fn slots(&mut self) -> Vec<(Parameter, &mut u64)> {
        match self {
            Self::Disk(_, disk) => disk.slots(),
            Self::Flash(_, flash) => flash.slots(),
            Self::Remote(remote) => remote.slots(),
            Self::Memory(memory) => memory.slots(),
        }
    }

    /// The parameters and their values in base units (bytes, bytes a second, nanoseconds).
    pub fn parameters(&self) -> Vec<(Parameter, u64)> {
        self.clone().slots().into_iter().map(|(parameter, value)| (parameter, *value)).collect()
    }

    /// Changes a parameter.
    ///
    /// # Errors
    /// If there is none of this name, or the value is not one: a sentence says what is known.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), BadSetting> {
        let kind = self.kind();
        let mut slots = self.slots();
        let Some((parameter, slot)) = slots.iter_mut().find(|(p, _)| p.key == key) else {
            let known: Vec<&str> = slots.iter().map(|(p, _)| p.key).collect();
            let (kind, known) = (kind.as_str(), known.join(", "));
            return Err(BadSetting::new(format!("{kind} has no parameter '{key}'; it has {known}")));
        };
        **slot = parameter
            .read(value)
            .map_err(|expected| BadSetting::new(format!("{key}={value}: {key} {expected}")))?;
        Ok(())
    }

    /// The same with another start of the random numbers, where there are any.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        if let Some((_, slot)) = self.slots().iter_mut().find(|(p, _)| p.key == "seed") {
            **slot = seed;
        }
        self
    }

    /// Whether the parameters go together.
    ///
    /// # Errors
    /// If not: a sentence says which do not.
    pub fn check(&self) -> Result<(), BadSetting> {
        match self {
            Self::Disk(_, disk) => disk.check(),
            Self::Flash(..) | Self::Remote(_) | Self::Memory(_) => Ok(()),
        }
    }

    /// Whether the device may lose completed writes that are neither durable nor flushed when power is cut.
    pub fn volatile_cache(&self) -> bool {
        match self {
            Self::Disk(_, disk) => disk.write_cache == 1,
            Self::Flash(_, flash) => flash.power_loss_protection == 0,
            Self::Remote(_) | Self::Memory(_) => false,
        }
    }
}

impl fmt::Display for Settings {
    /// The kind, and what differs from its defaults: `hdd-10k,rpm=15000,seed=7`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().as_str())?;
        for ((parameter, value), (_, default)) in
            self.parameters().into_iter().zip(Self::of(self.kind()).parameters())
        {
            if value != default {
                write!(f, ",{}={}", parameter.key, parameter.show(value))?;
            }
        }
        Ok(())
    }
}

impl FromStr for Settings {
    type Err = BadSetting;

    /// As [`Settings`] are displayed.
    fn from_str(text: &str) -> Result<Self, BadSetting> {
        let mut words = text.split(',');
        let name = words.next().unwrap_or_default();
        let kind = Kind::ALL.into_iter().find(|k| k.as_str() == name).ok_or_else(|| {
            let known: Vec<&str> = Kind::ALL.iter().map(|k| k.as_str()).collect();
            BadSetting::new(format!("'{name}' is not a kind of device; known are {}", known.join(", ")))
        })?;
        let mut settings = Self::of(kind);
        for word in words {
            let (key, value) =
                word.split_once('=').ok_or_else(|| BadSetting::new(format!("'{word}' is not KEY=VALUE")))?;
            settings.set(key, value)?;
        }
        settings.check()?;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_displayed_as_they_are_read() {
        for kind in Kind::ALL {
            assert_eq!(kind.as_str().parse(), Ok(Settings::of(kind)));
            assert_eq!(Settings::of(kind).kind(), kind);
            assert_eq!(Settings::of(kind).to_string(), kind.as_str());
            for (parameter, value) in Settings::of(kind).parameters() {
                let shown = parameter.show(value);
                let mut again = Settings::of(kind);
                again.set(parameter.key, &shown).unwrap();
                assert_eq!(again, Settings::of(kind), "{}={shown}", parameter.key);
                assert!(!parameter.about.is_empty());
            }
        }
        let text = "hdd-7k2,rpm=5400,queue=1,write-cache=no,seed=7";
        assert_eq!(text.parse::<Settings>().unwrap().to_string(), text);
    }

    #[test]
    fn what_is_not_understood_is_told_in_a_sentence() {
        for (text, words) in [
            ("floppy", "known are hdd-10k"),
            ("", "known are hdd-10k"),
            ("hdd-10k,rmp=7200", "has no parameter 'rmp'; it has "),
            ("hdd-10k,rpm", "'rpm' is not KEY=VALUE"),
            ("hdd-10k,rpm=fast", "rpm is a whole number"),
            ("hdd-10k,rpm=0", "rpm lies between"),
            ("ssd-sata,plp=1", "plp is yes or no"),
            ("ssd-sata,flush=5", "flush is a time such as"),
            ("remote,rate=9Q", "rate is bytes a second"),
        ] {
            let told = text.parse::<Settings>().unwrap_err().to_string();
            assert!(told.contains(words), "{text}: {told}");
            assert!(!told.contains('\n'));
        }
    }

    #[test]
    fn volatile_is_what_a_flush_has_to_empty() {
        let volatile = |text: &str| text.parse::<Settings>().unwrap().volatile_cache();
        assert!(volatile("hdd-10k") && volatile("ssd-nvme,plp=no"));
        assert!(!volatile("hdd-10k,write-cache=no") && !volatile("ssd-nvme"));
        assert!(!volatile("remote") && !volatile("nvdram"));
    }
}
