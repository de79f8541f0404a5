//! Reads the output of a stage's last layer out of llama.cpp's graph and stops the graph there.
//!
//! The graph evaluation callback is asked about each node before it runs; the node named `l_out-<last>` is the hidden
//! state after the last layer. Once it is computed its rows are copied and the callback ends the graph, so neither the
//! output norm nor the output head runs.

use llama_cpp_sys_2 as sys;
use std::ffi::{CString, c_char, c_void};

pub(super) struct Capture {
    name: CString,
    n_embd: usize,
    /// `[n_rows, n_embd]` of the last pass.
    pub(super) rows: Vec<f32>,
    /// Why the tensor could not be read, when it was there but had another form.
    pub(super) fault: Option<String>,
}

impl Capture {
    pub(super) fn new(last_layer: u32, n_embd: usize) -> Box<Self> {
        let name = CString::new(format!("l_out-{last_layer}")).unwrap_or_default();
        Box::new(Self { name, n_embd, rows: Vec::new(), fault: None })
    }

    pub(super) fn reset(&mut self) {
        self.rows.clear();
        self.fault = None;
    }

    fn is_target(&self, name: &[c_char]) -> bool {
        let target = self.name.as_bytes_with_nul();
        name.len() >= target.len() && name.iter().zip(target).all(|(a, b)| *a as u8 == *b)
    }

    fn take(&mut self, tensor: &sys::ggml_tensor) {
        let [width, n_rows, outer, outermost] = tensor.ne.map(|n| usize::try_from(n).unwrap_or(0));
        let plain = tensor.type_ == sys::GGML_TYPE_F32 && width == self.n_embd && outer == 1 && outermost == 1;
        // SAFETY: reads the tensor's header only.
        if !plain || !unsafe { sys::ggml_is_contiguous(tensor) } {
            self.fault = Some(format!(
                "`{}` is a tensor of type {} and shape {:?}, expected contiguous f32 [{}, n]",
                self.name.to_string_lossy(),
                tensor.type_,
                tensor.ne,
                self.n_embd
            ));
            return;
        }
        // llama.cpp runs the graph once for each run of consecutive sequences, so rows arrive in pieces, in order.
        let start = self.rows.len();
        self.rows.resize(start + width * n_rows, 0.0);
        let piece = &mut self.rows[start..];
        // SAFETY: `piece` has exactly the bytes of the contiguous f32 tensor, which the scheduler has just computed.
        unsafe {
            sys::ggml_backend_tensor_get(tensor, piece.as_mut_ptr().cast(), 0, std::mem::size_of_val(piece));
        }
    }
}

/// The callback: `user_data` is the `Capture` of the context, which boxes it for as long as the context lives.
pub(super) unsafe extern "C" fn on_node(tensor: *mut sys::ggml_tensor, ask: bool, user_data: *mut c_void) -> bool {
    // SAFETY: ggml passes a live node; `user_data` is the pointer given at context creation, and the engine thread that
    // runs the graph is the only one to touch it.
    let (tensor, capture) = unsafe { (&*tensor, &mut *user_data.cast::<Capture>()) };
    if ask {
        return capture.is_target(&tensor.name);
    }
    capture.take(tensor);
    false
}
