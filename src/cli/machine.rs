//! The machine that this process runs on, as far as the policy resolver and evidence ask.

use std::process::Command;

use crate::policy::Capability;

/// What the CPU of this machine can do in this build, by the name of its model and the kernels in use.
pub fn capability() -> Capability {
    let capability = Capability::default();
    let device = cpu_model().unwrap_or_else(|| capability.device.clone());
    Capability { device, isa: isa().to_owned(), ..capability }
}

/// The variant of our kernels in use.
#[cfg(feature = "engine")]
fn isa() -> &'static str {
    crate::kernels::isa().label()
}

/// Without an engine there are no kernels.
#[cfg(not(feature = "engine"))]
fn isa() -> &'static str {
    "portable"
}

/// The model of the CPU, as Linux or macOS names it.
fn cpu_model() -> Option<String> {
    let linux = || cpu_of(&std::fs::read_to_string("/proc/cpuinfo").ok()?);
    let macos = || {
        let output = Command::new("/usr/sbin/sysctl").args(["-n", "machdep.cpu.brand_string"]).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()).filter(|name| !name.is_empty())
    };
    if cfg!(target_os = "macos") { macos() } else { linux() }
}

/// The first processor of a `/proc/cpuinfo`. Virtual machines may shorten the name to that of a family of products, and Arm
/// has none: the numbers behind it tell models apart.
fn cpu_of(cpuinfo: &str) -> Option<String> {
    let first = cpuinfo.split("\n\n").next()?;
    let value = |wanted: &str| {
        let mut pairs = first.lines().filter_map(|line| line.split_once(':'));
        pairs.find(|(key, _)| key.trim() == wanted).map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    };
    let fields = |names: &[(&str, &str)]| {
        let known = names.iter().filter_map(|(key, name)| Some(format!("{name} {}", value(key)?)));
        known.collect::<Vec<_>>().join(", ")
    };
    let x86 = fields(&[("cpu family", "family"), ("model", "model"), ("stepping", "stepping")]);
    let arm = fields(&[("CPU implementer", "implementer"), ("CPU part", "part"), ("CPU variant", "variant")]);
    match (value("model name"), x86.as_str(), arm.as_str()) {
        (Some(name), "", "") => Some(name.to_owned()),
        (Some(name), "", numbers) | (Some(name), numbers, _) => Some(format!("{name} ({numbers})")),
        (None, "", "") => None,
        (None, "", numbers) | (None, numbers, _) => Some(numbers.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_told_apart() {
        for (cpuinfo, wanted) in [
            (
                "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\
                 stepping\t: 1\n\nprocessor\t: 1\nmodel name\t: Another\n",
                Some("AMD EPYC (family 25, model 17, stepping 1)"),
            ),
            (
                "processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x1\nCPU part\t: 0xd0c\n\n",
                Some("implementer 0x41, part 0xd0c, variant 0x1"),
            ),
            ("model name\t: RISC: V\n", Some("RISC: V")),
            ("model name\t:\nflags\t: fpu\n", None),
            ("", None),
        ] {
            assert_eq!(cpu_of(cpuinfo).as_deref(), wanted, "{cpuinfo:?}");
        }
    }

    #[test]
    fn this_machine_has_a_name() {
        let capability = capability();
        assert!(!capability.device.is_empty() && !capability.isa.is_empty());
        assert_eq!(capability.paths, Capability::default().paths);
    }
}
