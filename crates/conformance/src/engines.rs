//! The devices present, and why others are not.

use bakewell::{Arch, Device, DeviceName, Error};

/// Every engine that this build knows: those that opened, and those that did not with the reason.
#[derive(Debug, Default)]
pub struct Engines {
    /// Devices that run operations here.
    pub present: Vec<Device>,
    /// Devices that do not, and why.
    pub absent: Vec<(DeviceName, Error)>,
}

impl Engines {
    /// Opens the reference, the emulator as every architecture, and the first GPU.
    pub fn find() -> Engines {
        let mut engines = Engines::default();
        let emulated = Arch::ALL.map(DeviceName::Emulated);
        for name in [DeviceName::Reference].into_iter().chain(emulated).chain([DeviceName::Cuda(0)]) {
            match Device::open(name) {
                Ok(device) => engines.present.push(device),
                Err(error) => engines.absent.push((name, error)),
            }
        }
        engines
    }

    /// One line per engine that is absent, for a test to print: what is skipped is said out loud.
    pub fn skipped(&self) -> String {
        self.absent.iter().map(|(name, error)| format!("skipped {name}: {error}\n")).collect()
    }
}
