// The operations of one variant, as kernels/dispatch.h lists them.

#ifndef SKIPPY_OPS_H
#define SKIPPY_OPS_H

#include "ggml.h"

namespace skippy {
namespace SKIPPY_VARIANT {

void matmul_rows(ggml_tensor * dst, int ith, int nth, void * userdata);
void route(ggml_tensor * dst, int ith, int nth, void * userdata);
void experts_inner(ggml_tensor * dst, int ith, int nth, void * userdata);
void glu(ggml_tensor * dst, int ith, int nth, void * userdata);
void experts_outer(ggml_tensor * dst, int ith, int nth, void * userdata);
void index_select(ggml_tensor * dst, int ith, int nth, void * userdata);
void index_candidates(ggml_tensor * dst, int ith, int nth, void * userdata);
void index_merge(ggml_tensor * dst, int ith, int nth, void * userdata);
void list_mask(ggml_tensor * dst, int ith, int nth, void * userdata);
void attend_listed(ggml_tensor * dst, int ith, int nth, void * userdata);
void pack(ggml_tensor * dst, int ith, int nth, void * userdata);
void matmul_packed(ggml_tensor * dst, int ith, int nth, void * userdata);
void experts_inner_packed(ggml_tensor * dst, int ith, int nth, void * userdata);
void experts_outer_packed(ggml_tensor * dst, int ith, int nth, void * userdata);
int64_t packed_bytes(int type, int64_t K);
double fma_rate();

} // namespace SKIPPY_VARIANT
} // namespace skippy

#endif
