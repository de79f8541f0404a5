//! llama.cpp's log lines: to `tracing`, and the last error of a thread to whoever asks why a call failed.

use llama_cpp_sys_2 as sys;
use std::{
    cell::RefCell,
    ffi::{CStr, c_char, c_void},
};

thread_local! {
    static LAST_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Errors longer than this are cut: they end up in one log line.
const MAX_ERROR: usize = 600;

pub(super) fn install() {
    // SAFETY: the callback is a plain function that stays valid for the life of the process and ignores its user data.
    unsafe { sys::llama_log_set(Some(on_line), std::ptr::null_mut()) };
}

/// Runs `call` and returns what it returned together with what llama.cpp logged as errors on this thread meanwhile.
pub(super) fn with_errors<T>(call: impl FnOnce() -> T) -> (T, String) {
    LAST_ERROR.with_borrow_mut(String::clear);
    let value = call();
    let mut errors = LAST_ERROR.take();
    if errors.is_empty() {
        errors.push_str("no reason given");
    }
    (value, errors)
}

unsafe extern "C" fn on_line(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: llama.cpp passes a terminated string that lives for the call.
    let line = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let line = line.trim();
    if line.is_empty() || line.chars().all(|c| c == '.') {
        return;
    }
    // One level down each: what fails is reported by our own caller, with context.
    match level {
        sys::GGML_LOG_LEVEL_ERROR => {
            tracing::warn!(target: "llama.cpp", "{line}");
            LAST_ERROR.with_borrow_mut(|last| remember(last, line));
        }
        sys::GGML_LOG_LEVEL_WARN => tracing::debug!(target: "llama.cpp", "{line}"),
        _ => tracing::trace!(target: "llama.cpp", "{line}"),
    }
}

fn remember(last: &mut String, line: &str) {
    // llama.cpp prefixes its own function name, which means nothing to an operator.
    let line = line.split_once(": ").map_or(line, |(_, rest)| rest);
    if last.len() + line.len() > MAX_ERROR || last.contains(line) {
        return;
    }
    if !last.is_empty() {
        last.push_str("; ");
    }
    last.push_str(line);
}
