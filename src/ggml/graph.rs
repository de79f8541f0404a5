//! A graph under construction, in memory that is used again for the next one.

use super::{GgmlError, Leaf, elements};
use llama_cpp_sys_2 as sys;
use std::{
    cell::{Cell, RefCell},
    marker::PhantomData,
    ptr::NonNull,
};

/// Memory for the nodes of one graph at a time.
pub struct Arena {
    memory: Vec<u64>,
    max_nodes: usize,
    threads: u32,
}

/// Tensors that one operation here makes at most, and places of the graph that it and its sources take up.
const TENSORS_PER_OP: usize = 8;

impl Arena {
    /// Room for graphs of up to `max_nodes` operations.
    pub fn new(max_nodes: usize) -> Self {
        // SAFETY: both take plain numbers.
        let bytes = unsafe {
            let tensors = sys::ggml_tensor_overhead() * (max_nodes * TENSORS_PER_OP);
            tensors + sys::ggml_graph_overhead_custom(max_nodes * TENSORS_PER_OP, false)
        };
        Self { memory: vec![0; bytes.div_ceil(8) + 64], max_nodes, threads: 1 }
    }

    /// The same for evaluation by `threads` threads. Operations may be cut into parts for them; results stay the same.
    #[must_use]
    pub fn for_threads(self, threads: u32) -> Self {
        Self { threads, ..self }
    }

    /// Makes room for graphs of `ops` operations, if there is less.
    pub fn reserve(&mut self, ops: usize) {
        if self.max_nodes < ops {
            *self = Self::new(ops.next_power_of_two()).for_threads(self.threads);
        }
    }

    /// An empty graph. Graphs of one `kind` (0 and a few more) share the layout of their intermediate results, which is
    /// cheap as long as they are alike.
    ///
    /// # Errors
    /// When ggml is out of memory.
    pub fn graph(&mut self, kind: usize) -> Result<Graph<'_>, GgmlError> {
        let mem_size = self.memory.len() * 8;
        let mem_buffer = self.memory.as_mut_ptr().cast();
        let params = sys::ggml_init_params { mem_size, mem_buffer, no_alloc: true };
        // SAFETY: the memory is valid for `mem_size` bytes and borrowed for the life of the graph.
        let context = NonNull::new(unsafe { sys::ggml_init(params) }).ok_or(GgmlError::Alloc("a graph"))?;
        // SAFETY: the context has room for it (see `new`).
        let graph = unsafe { sys::ggml_new_graph_custom(context.as_ptr(), self.max_nodes * TENSORS_PER_OP, false) };
        let graph = NonNull::new(graph).ok_or(GgmlError::Alloc("a graph"))?;
        Ok(Graph {
            context,
            graph,
            kind,
            pool: self.threads,
            threads: Cell::new(u32::MAX),
            ops: Cell::new(0),
            max_ops: self.max_nodes,
            spare: Cell::new(None),
            fault: RefCell::new(None),
            inputs: RefCell::default(),
            constants: RefCell::default(),
            _arena: PhantomData,
        })
    }
}

/// A tensor of a graph. Shapes are in ggml's order: the first dimension is contiguous.
#[derive(Clone, Copy)]
pub struct Tensor<'g> {
    pub(super) ptr: NonNull<sys::ggml_tensor>,
    _graph: PhantomData<&'g ()>,
}

impl Tensor<'_> {
    fn raw(&self) -> &sys::ggml_tensor {
        // SAFETY: points into a context or a leaf that outlives `'g`; headers are not changed while shared.
        unsafe { self.ptr.as_ref() }
    }

    /// Sizes, four of them.
    pub fn shape(&self) -> [i64; 4] {
        self.raw().ne
    }

    /// Strides in bytes.
    pub fn strides(&self) -> [usize; 4] {
        self.raw().nb
    }

    pub(super) fn ty(&self) -> sys::ggml_type {
        self.raw().type_
    }

    pub(super) fn n_elements(&self) -> i64 {
        self.shape().iter().product()
    }

    pub(super) fn is_contiguous(&self) -> bool {
        // SAFETY: a valid tensor.
        unsafe { sys::ggml_is_contiguous(self.ptr.as_ptr()) }
    }

    /// Shape and type, for errors.
    pub(super) fn describe(&self) -> String {
        // SAFETY: the name of a type is a static string.
        let name = unsafe { std::ffi::CStr::from_ptr(sys::ggml_type_name(self.ty())) };
        format!("{:?} {}", self.shape(), name.to_string_lossy())
    }
}

/// A graph under construction. Operations that ggml would abort on are not made: the first such fault is kept, and
/// [`Computer::run`](super::Computer::run) answers with it.
pub struct Graph<'g> {
    context: NonNull<sys::ggml_context>,
    pub(super) graph: NonNull<sys::ggml_cgraph>,
    pub(super) kind: usize,
    /// Threads that will evaluate it, as far as the arena knows.
    pub(super) pool: u32,
    /// Threads to evaluate with at most.
    pub(super) threads: Cell<u32>,
    ops: Cell<usize>,
    max_ops: usize,
    /// What stands in for tensors after a fault.
    spare: Cell<Option<NonNull<sys::ggml_tensor>>>,
    pub(super) fault: RefCell<Option<GgmlError>>,
    pub(super) inputs: RefCell<Vec<(NonNull<sys::ggml_tensor>, Vec<u8>)>>,
    /// What custom operations read while the graph runs.
    #[allow(clippy::vec_box)] // Their addresses are with the nodes while the list grows.
    pub(super) constants: RefCell<Vec<Box<[f32; 2]>>>,
    _arena: PhantomData<&'g mut Arena>,
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `Arena::graph`, freed once; the memory itself belongs to the arena.
        unsafe { sys::ggml_free(self.context.as_ptr()) };
    }
}

impl<'g> Graph<'g> {
    pub(super) fn ctx(&self) -> *mut sys::ggml_context {
        self.context.as_ptr()
    }

    /// Evaluates with at most `n` threads: in a graph of little work they would mostly wait for each other.
    pub fn limit_threads(&self, n: u32) {
        self.threads.set(n.max(1));
    }

    /// Operations so far.
    pub fn len(&self) -> usize {
        self.ops.get()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A weight, cache or constant.
    pub fn leaf(&self, leaf: &'g Leaf) -> Tensor<'g> {
        // SAFETY: a leaf's tensor is never null.
        Tensor { ptr: unsafe { NonNull::new_unchecked(leaf.as_ptr()) }, _graph: PhantomData }
    }

    /// Keeps the first fault.
    pub(super) fn fail(&self, error: GgmlError) {
        self.fault.borrow_mut().get_or_insert(error);
    }

    /// Makes a node with `make` if `sound`, else records a fault and returns `instead`.
    pub(super) fn node(
        &self,
        op: &'static str,
        sound: bool,
        sources: &[Tensor<'g>],
        make: impl FnOnce(*mut sys::ggml_context) -> *mut sys::ggml_tensor,
    ) -> Tensor<'g> {
        let instead = sources.first().copied();
        if self.ops.get() >= self.max_ops {
            self.fail(GgmlError::TooManyNodes(self.max_ops));
        } else if !sound {
            let what: Vec<String> = sources.iter().map(Tensor::describe).collect();
            self.fail(GgmlError::Shape { op, what: what.join(", ") });
        } else if self.fault.borrow().is_none() {
            self.ops.set(self.ops.get() + 1);
            if let Some(ptr) = NonNull::new(make(self.ctx())) {
                return Tensor { ptr, _graph: PhantomData };
            }
            self.fail(GgmlError::Alloc("a node"));
        }
        instead.unwrap_or_else(|| self.placeholder())
    }

    /// Something to go on with after a fault of an operation without sources.
    fn placeholder(&self) -> Tensor<'g> {
        let make = || {
            // SAFETY: the arena has room for one tensor beyond those of all operations.
            let ptr = unsafe { sys::ggml_new_tensor_1d(self.ctx(), sys::GGML_TYPE_F32, 1) };
            NonNull::new(ptr).unwrap_or_else(|| unreachable!("ggml answers with a tensor or ends the process"))
        };
        let ptr = self.spare.get().unwrap_or_else(make);
        self.spare.set(Some(ptr));
        Tensor { ptr, _graph: PhantomData }
    }

    /// Token ids, positions or lists that the graph reads: `data` in the given shape.
    pub fn input_i32(&self, data: &[i32], shape: [i64; 2]) -> Tensor<'g> {
        self.input(sys::GGML_TYPE_I32, shape, data.len(), data.iter().flat_map(|x| x.to_ne_bytes()).collect())
    }

    /// Rows that the graph reads.
    pub fn input_f32(&self, data: &[f32], shape: [i64; 2]) -> Tensor<'g> {
        self.input(sys::GGML_TYPE_F32, shape, data.len(), data.iter().flat_map(|x| x.to_ne_bytes()).collect())
    }

    /// A mask in halves: 0 where shown, -inf elsewhere.
    pub fn input_mask(&self, shown: impl Fn(usize, usize) -> bool, n_kv: usize, n_rows: usize) -> Tensor<'g> {
        let half = |shown: bool| if shown { half::f16::ZERO } else { half::f16::NEG_INFINITY };
        let cells = (0..n_rows).flat_map(|row| (0..n_kv).map(move |kv| (row, kv)));
        let data: Vec<u8> = cells.flat_map(|(row, kv)| half(shown(row, kv)).to_ne_bytes()).collect();
        self.input(sys::GGML_TYPE_F16, [n_kv as i64, n_rows as i64], n_kv * n_rows, data)
    }

    fn input(&self, ty: sys::ggml_type, shape: [i64; 2], len: usize, data: Vec<u8>) -> Tensor<'g> {
        let sound = elements(&shape) == Some(len as i64);
        let tensor = self.node("input", sound, &[], |ctx| {
            // SAFETY: a new tensor without data; the allocator gives it some, since it is marked as an input.
            unsafe {
                let tensor = sys::ggml_new_tensor_2d(ctx, ty, shape[0], shape[1]);
                sys::ggml_set_input(tensor);
                tensor
            }
        });
        self.inputs.borrow_mut().push((tensor.ptr, data));
        tensor
    }

    /// Makes `tensor` part of the evaluation.
    pub fn keep(&self, tensor: Tensor<'g>) {
        if self.fault.borrow().is_none() {
            // SAFETY: graph and tensor belong to contexts that are alive; the graph has room for all nodes counted.
            unsafe { sys::ggml_build_forward_expand(self.graph.as_ptr(), tensor.ptr.as_ptr()) };
        }
    }

    /// Makes `tensor` part of the evaluation, and readable after it.
    pub fn output(&self, tensor: Tensor<'g>) {
        // After a fault it may be a leaf, whose header is not ours to change.
        if self.fault.borrow().is_none() {
            // SAFETY: a valid tensor of this graph.
            unsafe { sys::ggml_set_output(tensor.ptr.as_ptr()) };
        }
        self.keep(tensor);
    }
}
