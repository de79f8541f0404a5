// ggml's CPU part: see cpu.h.

#include "cpu.h"

#ifdef SKIPPY_DYNAMIC

#include <dlfcn.h>

namespace {

// Where the library has what is called.
struct Library {
    const char *                               file;
    ggml_backend_dev_t                         device;
    decltype(&ggml_backend_cpu_set_threadpool) set_threadpool;
    decltype(&ggml_backend_cpu_set_n_threads)  set_n_threads;
    decltype(&ggml_threadpool_new)             threadpool_new;
    decltype(&ggml_threadpool_free)            threadpool_free;
    decltype(&ggml_get_type_traits_cpu)        type_traits;
};

Library loaded = {};

template <typename F> bool find(ggml_backend_reg_t backend, const char * name, F & function) {
    function = (F) ggml_backend_reg_get_proc_address(backend, name);
    return function != nullptr;
}

// The registry does not tell about type traits, but they are a symbol of the file that has the others.
bool find_type_traits(Library & library) {
    Dl_info info;
    if (dladdr((const void *) library.threadpool_new, &info) == 0 || info.dli_fname == nullptr) {
        return false;
    }
    void * handle = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (handle == nullptr) {
        return false;
    }
    // Not closed: like the registry, this never gives the library up.
    library.file        = info.dli_fname;
    library.type_traits = (decltype(library.type_traits)) dlsym(handle, "ggml_get_type_traits_cpu");
    return library.type_traits != nullptr;
}

} // namespace

bool skippy_cpu_load(const char * dir) {
    try {
        ggml_backend_load_all_from_path(dir);
    } catch (...) {
        return false;
    }
    Library library = {};
    library.device  = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (library.device == nullptr) {
        return false;
    }
    const ggml_backend_reg_t backend = ggml_backend_dev_backend_reg(library.device);
    if (!find(backend, "ggml_backend_cpu_set_threadpool", library.set_threadpool) ||
        !find(backend, "ggml_backend_set_n_threads", library.set_n_threads) ||
        !find(backend, "ggml_threadpool_new", library.threadpool_new) ||
        !find(backend, "ggml_threadpool_free", library.threadpool_free) || !find_type_traits(library)) {
        return false;
    }
    loaded = library;
    return true;
}

const char * skippy_cpu_library(void) {
    return loaded.file;
}

ggml_backend_t skippy_cpu_backend(ggml_threadpool_t pool) {
    if (loaded.device == nullptr) {
        return nullptr;
    }
    const ggml_backend_t backend = ggml_backend_dev_init(loaded.device, nullptr);
    if (backend != nullptr) {
        loaded.set_threadpool(backend, pool);
    }
    return backend;
}

void skippy_cpu_set_threads(ggml_backend_t backend, int threads) {
    loaded.set_n_threads(backend, threads);
}

ggml_threadpool_t skippy_cpu_threads(ggml_threadpool_params * params) {
    return loaded.threadpool_new == nullptr ? nullptr : loaded.threadpool_new(params);
}

void skippy_cpu_threads_free(ggml_threadpool_t pool) {
    loaded.threadpool_free(pool);
}

const ggml_type_traits_cpu * skippy_cpu_type_traits(ggml_type type) {
    return loaded.type_traits == nullptr ? nullptr : loaded.type_traits(type);
}

#else

bool skippy_cpu_load(const char *) {
    return true;
}

const char * skippy_cpu_library(void) {
    return nullptr;
}

ggml_backend_t skippy_cpu_backend(ggml_threadpool_t pool) {
    const ggml_backend_t backend = ggml_backend_cpu_init();
    if (backend != nullptr) {
        ggml_backend_cpu_set_threadpool(backend, pool);
    }
    return backend;
}

void skippy_cpu_set_threads(ggml_backend_t backend, int threads) {
    ggml_backend_cpu_set_n_threads(backend, threads);
}

ggml_threadpool_t skippy_cpu_threads(ggml_threadpool_params * params) {
    return ggml_threadpool_new(params);
}

void skippy_cpu_threads_free(ggml_threadpool_t pool) {
    ggml_threadpool_free(pool);
}

const ggml_type_traits_cpu * skippy_cpu_type_traits(ggml_type type) {
    return ggml_get_type_traits_cpu(type);
}

#endif
