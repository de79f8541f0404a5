//! Makes Rust of the protocol between stages. With the feature `engine` it also builds `kernels/` with `cc` and binds its
//! header with `bindgen`.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    name_the_commit();
    compile_the_protocol();
    #[cfg(feature = "engine")]
    engine::build();
}

/// `skippy_build_info` names the commit. Outside a git checkout it stays unknown.
fn name_the_commit() {
    println!("cargo:rerun-if-env-changed=SKIPPY_BUILD_GIT");
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| std::path::Path::new(log).exists()) {
        println!("cargo:rerun-if-changed={log}");
    }
    if std::env::var_os("SKIPPY_BUILD_GIT").is_none()
        && let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"])
    {
        println!("cargo:rustc-env=SKIPPY_BUILD_GIT={commit}");
    }
}

/// Messages and service of `stage.proto`, without a `protoc` on this machine.
fn compile_the_protocol() {
    const DIR: &str = "src/chain/proto";
    const FILE: &str = "src/chain/proto/stage.proto";
    println!("cargo:rerun-if-changed={FILE}");
    let files = protox::compile([FILE], [DIR]).unwrap_or_else(|e| panic!("{FILE}: {e}"));
    tonic_prost_build::configure()
        .bytes(".")
        .build_transport(false)
        .emit_rerun_if_changed(false)
        .compile_fds(files)
        .unwrap_or_else(|e| panic!("cannot write the Rust code of {FILE}: {e}"));
}

#[cfg(feature = "engine")]
mod engine {
    use std::{env, path::PathBuf};

    const SOURCES: [&str; 4] = ["kernels/cpu.cpp", "kernels/dispatch.cpp", "kernels/guard.cpp", "kernels/segments.cpp"];
    /// Compiled once for each instruction set, and chosen among when the program runs.
    const VARIANT_SOURCES: [&str; 9] = [
        "kernels/variant/attend.cpp",
        "kernels/variant/blocks_q4.cpp",
        "kernels/variant/experts.cpp",
        "kernels/variant/indexer.cpp",
        "kernels/variant/matmul_rows.cpp",
        "kernels/variant/packed.cpp",
        "kernels/variant/panels.cpp",
        "kernels/variant/products.cpp",
        "kernels/variant/table.cpp",
    ];
    /// Whether ggml comes in shared libraries, the one for the CPU chosen when the program runs.
    const PORTABLE: bool = cfg!(feature = "portable");
    const HEADER: &str = "kernels/skippy_kernels.h";

    /// Names and compiler flags of the variants for the target.
    fn variants() -> &'static [(&'static str, &'static [&'static str])] {
        const AVX2: [&str; 4] = ["-march=x86-64", "-mavx2", "-mfma", "-mf16c"];
        const AVX512: [&str; 5] = ["-march=x86-64-v3", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"];
        match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
            Ok("x86_64") => &[("portable", &["-march=x86-64"]), ("avx2", &AVX2), ("avx512", &AVX512)],
            Ok("aarch64") => &[("portable", &[]), ("neon", &[])],
            _ => &[("portable", &[])],
        }
    }

    pub(crate) fn build() {
        println!("cargo:rerun-if-changed=kernels");
        let libraries = if PORTABLE { " in libraries" } else { "" };
        println!("cargo:rustc-env=SKIPPY_BUILD_LLAMA=llama-cpp-sys-2 {}{libraries}", pinned_version());
        if PORTABLE {
            // The layout of `make release`, wherever the folder is moved.
            let here =
                if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("macos") { "@loader_path" } else { "$ORIGIN" };
            println!("cargo:rustc-link-arg-bins=-Wl,-rpath,{here}/../lib");
        }
        let include = llama_include();
        compile(&include);
        bind(&include);
    }

    /// The version of `llama-cpp-sys-2` that Cargo.toml pins.
    fn pinned_version() -> String {
        println!("cargo:rerun-if-changed=Cargo.toml");
        let manifest = std::fs::read_to_string("Cargo.toml").unwrap_or_default();
        let line = manifest.lines().find(|line| line.starts_with("llama-cpp-sys-2 =")).unwrap_or_default();
        line.split("version = \"=").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or("unknown").to_owned()
    }

    /// Where `llama-cpp-sys-2` installed the headers of the llama.cpp that it built.
    fn llama_include() -> PathBuf {
        let root = env::var_os("DEP_LLAMA_ROOT").expect("llama-cpp-sys-2 sets DEP_LLAMA_ROOT through its `links` key");
        let include = PathBuf::from(root).join("include");
        assert!(
            include.join("llama.h").is_file(),
            "no llama.h under {}: did llama-cpp-sys-2 build?",
            include.display()
        );
        include
    }

    fn compile(include: &PathBuf) {
        let base = || {
            let mut build = cc::Build::new();
            build.cpp(true).std("c++17").opt_level(3).include("kernels").include(include).warnings(true);
            // What a variant may use is its own business.
            build.inherit_rustflags(false);
            // Vectors wider than a register are passed to inline functions only.
            build.flag_if_supported("-Wno-psabi");
            build
        };
        for (name, flags) in variants() {
            let mut build = base();
            build.define("SKIPPY_VARIANT", *name).files(VARIANT_SOURCES);
            for flag in *flags {
                build.flag(flag);
            }
            if *name == "portable" {
                build.define("SKIPPY_PORTABLE", None);
            }
            build.compile(&format!("skippy_kernels_{name}"));
        }
        let mut build = base();
        if PORTABLE {
            build.define("SKIPPY_DYNAMIC", None);
        }
        for (name, _) in variants() {
            build.define(&format!("SKIPPY_HAS_{}", name.to_uppercase()), None);
        }
        build.files(SOURCES).compile("skippy_kernels");
    }

    fn bind(include: &std::path::Path) {
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("kernels.rs");
        bindgen::Builder::default()
            .header(HEADER)
            .clang_arg(format!("-I{}", include.display()))
            .allowlist_item("(skippy|SKIPPY)_.*")
            // The llama types are those of llama-cpp-sys-2, not copies of them.
            .allowlist_recursively(false)
            .prepend_enum_name(false)
            .raw_line("use llama_cpp_sys_2::*;")
            .raw_line("use libc::FILE;")
            .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
            .generate()
            .unwrap_or_else(|e| panic!("bindgen could not read {HEADER}: {e} (is libclang installed?)"))
            .write_to_file(&out)
            .unwrap_or_else(|e| panic!("cannot write {}: {e}", out.display()));
    }
}
