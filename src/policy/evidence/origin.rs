//! Which build on which machine has measured, and whether that is this one.

use std::{io, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{
    build_info::{GIT, LLAMA, VERSION},
    package::hash_file,
    policy::{Backend, Capability},
};

/// The running executable. On Linux the link of the kernel's, which leads to it even when an update has replaced the file.
fn executable() -> io::Result<PathBuf> {
    let link = PathBuf::from("/proc/self/exe");
    if link.exists() { Ok(link) } else { std::env::current_exe() }
}

/// A build on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Version and commit of this crate.
    pub build: String,
    /// SHA-256 of the executable, in hexadecimal digits; empty where nobody had to know.
    pub binary_sha256: String,
    /// The llama.cpp built in.
    pub llama: String,
    /// The backend.
    pub backend: Backend,
    /// The device, as [`Capability::device`] names it.
    pub device: String,
    /// Instructions of the kernels, as [`Capability::isa`] names them.
    pub isa: String,
    /// Compute threads of the measurement. Not compared: a stage may run on fewer.
    pub threads: u32,
}

/// What differs between two origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference<'a> {
    /// The field.
    pub field: &'static str,
    /// What the evidence says.
    pub measured: &'a str,
    /// What holds here.
    pub here: &'a str,
}

impl Difference<'_> {
    /// Whether it is another build, rather than another machine.
    pub fn is_of_build(&self) -> bool {
        matches!(self.field, "build" | "binary_sha256" | "llama")
    }
}

impl Origin {
    /// This process with the stage's backend, its executable hashed.
    ///
    /// # Errors
    /// When the executable cannot be read.
    pub fn here(capability: &Capability, threads: u32) -> io::Result<Self> {
        let digest = hash_file(&executable()?, &|_| {})?;
        Ok(Self { binary_sha256: digest.to_string(), ..Self::unhashed(capability, threads) })
    }

    /// [`here`](Self::here) without the digest of the executable, for a process that has no evidence to compare with.
    pub fn unhashed(capability: &Capability, threads: u32) -> Self {
        Self {
            build: format!("{VERSION} ({GIT})"),
            binary_sha256: String::new(),
            llama: LLAMA.to_owned(),
            backend: capability.backend,
            device: capability.device.clone(),
            isa: capability.isa.clone(),
            threads,
        }
    }

    /// The same build with another backend of this machine.
    pub fn on(self, capability: &Capability) -> Self {
        let Capability { backend, device, isa, .. } = capability;
        Self { backend: *backend, device: device.clone(), isa: isa.clone(), ..self }
    }

    /// What makes evidence of `self` worth nothing `here`, the build first.
    pub fn differs<'a>(&'a self, here: &'a Self) -> impl Iterator<Item = Difference<'a>> {
        [
            ("build", &self.build, &here.build),
            ("binary_sha256", &self.binary_sha256, &here.binary_sha256),
            ("llama", &self.llama, &here.llama),
            ("device", &self.device, &here.device),
            ("isa", &self.isa, &here.isa),
        ]
        .into_iter()
        .filter(|(_, measured, here)| measured != here)
        .map(|(field, measured, here)| Difference { field, measured, here })
    }
}
