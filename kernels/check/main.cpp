// Property tests and fuzzing of the kernels: scripts/check-kernels.sh builds this with sanitizers.
//
// One case is a few bytes, from which everything is derived: which operation, its shapes, its data. A fuzzer brings its own
// bytes; without one, main() makes as many random cases as it is asked for.

#include "check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t n) {
    check::Bytes bytes(data, n);
    switch (bytes.within(0, 5)) {
        case 0:
        case 1: check::index(bytes); break;
        case 2: check::attend(bytes); break;
        case 3: check::mask(bytes); break;
        case 4: check::products(bytes); break;
        case 5: check::experts(bytes); break;
    }
    return 0;
}

#ifndef SKIPPY_FUZZER
int main(int argc, char ** argv) {
    const long cases = argc > 1 ? std::atol(argv[1]) : 1000;
    const long first = argc > 2 ? std::atol(argv[2]) : 0;
    for (long at = first; at < first + cases; ++at) {
        uint64_t state = (uint64_t) at * 0x9e3779b97f4a7c15ull + 1;
        uint8_t  data[64];
        for (uint8_t & byte : data) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            byte  = (uint8_t) (state >> 56);
        }
        LLVMFuzzerTestOneInput(data, sizeof data);
    }
    for (const check::Named & named : check::variants()) {
        std::printf("%s: ", named.name);
    }
    std::printf("%ld cases from %ld on, all as they should be\n", cases, first);
    return 0;
}
#endif
