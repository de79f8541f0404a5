// ggml's CPU part. It is linked in; or, with SKIPPY_DYNAMIC, it lies in shared libraries, one for each instruction set, of which
// one is loaded when the program runs. Then nothing of it can be called by name: everyone comes through here.
//
// Part of skippy_kernels.h; a header of its own for the kernels, which need no more than this.

#ifndef SKIPPY_CPU_H
#define SKIPPY_CPU_H

#include "ggml-backend.h"
#include "ggml-cpu.h"

#ifdef __cplusplus
extern "C" {
#endif

// Loads the library that fits this CPU best from `dir`, and whatever other backends of ggml lie there. Once, before any of the
// others is called, and by one thread. False when there is none. Where it is linked in, true, and nothing is done.
bool skippy_cpu_load(const char * dir);

// The file of the library, or NULL where it is linked in.
const char * skippy_cpu_library(void);

// NULL when there is no memory for it. Free with ggml_backend_free.
ggml_backend_t skippy_cpu_backend(ggml_threadpool_t pool);

void skippy_cpu_set_threads(ggml_backend_t backend, int threads);

// NULL when its threads cannot be started.
ggml_threadpool_t skippy_cpu_threads(struct ggml_threadpool_params * params);

void skippy_cpu_threads_free(ggml_threadpool_t pool);

// NULL before the library is loaded.
const struct ggml_type_traits_cpu * skippy_cpu_type_traits(enum ggml_type type);

#ifdef __cplusplus
}
#endif

#endif
