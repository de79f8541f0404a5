//! The C++ in `kernels/`: its header as bindgen reads it, and which variant of its operations runs.
#![allow(unsafe_code)]

pub mod cpu;

use serde::Serialize;
use std::{
    fmt,
    sync::{Barrier, OnceLock},
};

/// Guarded calls, the stream over memory segments, and operations of a graph; see `kernels/skippy_kernels.h`.
#[allow(missing_docs, non_camel_case_types, unreachable_pub, unused_imports, clippy::all)]
pub(crate) mod ffi {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// The environment variable that forces a variant.
pub const VARIABLE: &str = "SKIPPY_KERNELS";

/// An instruction set that the operations of `kernels/variant/` are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Isa {
    /// What every CPU of the architecture has.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// 64-bit ARM.
    Neon,
}

/// Why a variant cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelsError {
    /// No such variant.
    #[error("`{VARIABLE}` must be one of {known}, got `{got}`", known = names(Isa::ALL.iter().copied()))]
    Unknown {
        /// What was asked for.
        got: String,
    },
    /// This build or this CPU does not have it.
    #[error("`{VARIABLE}` is `{asked}`, but this machine and build can run only {has}", has = names(Isa::available()))]
    Unavailable {
        /// What was asked for.
        asked: Isa,
    },
}

impl Isa {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Portable, Self::Avx2, Self::Avx512, Self::Neon];

    /// Its name in logs, metrics and evidence.
    pub fn label(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }

    /// Those that this build has and this CPU can run.
    pub fn available() -> impl Iterator<Item = Self> {
        // SAFETY: takes a number.
        Self::ALL.iter().copied().filter(|isa| unsafe { ffi::skippy_isa_available(isa.id()) })
    }

    fn id(self) -> i32 {
        let id = match self {
            Self::Portable => ffi::SKIPPY_ISA_PORTABLE,
            Self::Avx2 => ffi::SKIPPY_ISA_AVX2,
            Self::Avx512 => ffi::SKIPPY_ISA_AVX512,
            Self::Neon => ffi::SKIPPY_ISA_NEON,
        };
        i32::try_from(id).unwrap_or_default()
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Fixes the variant for this process: the one that [`VARIABLE`] names, or the best that the CPU has.
///
/// # Errors
/// [`KernelsError`]: the variable names something that cannot run here.
pub fn choose() -> Result<Isa, KernelsError> {
    static CHOSEN: OnceLock<Result<Isa, KernelsError>> = OnceLock::new();
    let choose = || {
        let Some(asked) = std::env::var_os(VARIABLE).filter(|asked| !asked.is_empty()) else { return Ok(current()) };
        let known = Isa::ALL.iter().copied().find(|isa| asked == isa.label());
        let isa = known.ok_or_else(|| KernelsError::Unknown { got: asked.to_string_lossy().into_owned() })?;
        // SAFETY: nothing is computed before the first choice: whoever makes a graph comes through here.
        if unsafe { ffi::skippy_isa_use(isa.id()) } { Ok(isa) } else { Err(KernelsError::Unavailable { asked: isa }) }
    };
    CHOSEN.get_or_init(choose).clone()
}

/// The variant in use.
pub fn isa() -> Isa {
    choose().unwrap_or_else(|_| current())
}

/// Multiply-adds of f32 per second that `threads` threads reach in registers together, by the variant in use: what a kernel can
/// at best do here. The best of some rounds, in each of which all threads start at once: cores may share units.
pub fn fma_peak(threads: usize) -> f64 {
    const ROUNDS: usize = 8;
    let round = || -> f64 {
        let together = Barrier::new(threads.max(1));
        let one = || {
            together.wait();
            // SAFETY: takes nothing.
            unsafe { ffi::skippy_fma_rate() }
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(one)).collect();
            all.into_iter().map(|thread| thread.join().unwrap_or_default()).sum()
        })
    };
    (0..ROUNDS).map(|_| round()).fold(0.0, f64::max)
}

fn current() -> Isa {
    // SAFETY: takes nothing.
    let id = unsafe { ffi::skippy_isa() };
    Isa::ALL.iter().copied().find(|isa| isa.id() == id).unwrap_or(Isa::Portable)
}

fn names(all: impl Iterator<Item = Isa>) -> String {
    all.map(Isa::label).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_portable_variant_is_always_there_and_the_best_is_taken() {
        let available: Vec<_> = Isa::available().collect();
        assert!(available.contains(&Isa::Portable));
        assert!(available.contains(&current()));
        if std::env::var_os(VARIABLE).is_none() {
            assert_eq!(choose(), Ok(*available.last().unwrap()));
        }
        assert!(fma_peak(1) > 1e8);
    }

    #[test]
    fn refusals_name_what_there_is() {
        let unknown = KernelsError::Unknown { got: "mmx".into() }.to_string();
        assert_eq!(unknown, "`SKIPPY_KERNELS` must be one of portable, avx2, avx512, neon, got `mmx`");
        let refused = KernelsError::Unavailable { asked: Isa::Neon }.to_string();
        assert!(refused.starts_with("`SKIPPY_KERNELS` is `neon`, but this machine and build can run only portable"));
    }
}
