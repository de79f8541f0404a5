// A read-only FILE over memory segments: see skippy_kernels.h.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE // fopencookie
#endif

#include "skippy_kernels.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <vector>

namespace {

class segment_reader {
public:
    segment_reader(const skippy_segment * segments, size_t n) : segments_(segments, segments + n) {
        starts_.reserve(n);
        for (const auto & segment : segments_) {
            starts_.push_back(size_);
            size_ += segment.len;
        }
    }

    size_t read(char * out, size_t want) {
        size_t done = 0;
        while (done < want && pos_ < size_) {
            // The last segment that starts at or before pos_ and is not empty there.
            const size_t i    = std::upper_bound(starts_.begin(), starts_.end(), pos_) - starts_.begin() - 1;
            const size_t from = pos_ - starts_[i];
            const size_t n    = std::min(want - done, segments_[i].len - from);
            std::memcpy(out + done, static_cast<const char *>(segments_[i].data) + from, n);
            done += n;
            pos_ += n;
        }
        return done;
    }

    // The new position, or -1 when it would lie before the start.
    int64_t seek(int64_t offset, int whence) {
        int64_t base = 0;
        switch (whence) {
            case SEEK_SET: base = 0;                break;
            case SEEK_CUR: base = (int64_t) pos_;   break;
            case SEEK_END: base = (int64_t) size_;  break;
            default: return -1;
        }
        int64_t target;
        if (__builtin_add_overflow(base, offset, &target) || target < 0) {
            return -1;
        }
        pos_ = (size_t) target;
        return target;
    }

private:
    std::vector<skippy_segment> segments_;
    std::vector<size_t>         starts_;
    size_t                      size_ = 0;
    size_t                      pos_  = 0;
};

[[maybe_unused]] int close_reader(void * cookie) {
    delete static_cast<segment_reader *>(cookie);
    return 0;
}

#if defined(__linux__)

ssize_t cookie_read(void * cookie, char * out, size_t want) {
    return (ssize_t) static_cast<segment_reader *>(cookie)->read(out, want);
}

int cookie_seek(void * cookie, off64_t * offset, int whence) {
    const int64_t pos = static_cast<segment_reader *>(cookie)->seek(*offset, whence);
    if (pos < 0) {
        errno = EINVAL;
        return -1;
    }
    *offset = pos;
    return 0;
}

FILE * open_reader(segment_reader * reader) {
    cookie_io_functions_t io = {};
    io.read  = cookie_read;
    io.seek  = cookie_seek;
    io.close = close_reader;
    return fopencookie(reader, "rb", io);
}

#elif defined(__APPLE__)

int cookie_read(void * cookie, char * out, int want) {
    return (int) static_cast<segment_reader *>(cookie)->read(out, (size_t) want);
}

fpos_t cookie_seek(void * cookie, fpos_t offset, int whence) {
    const int64_t pos = static_cast<segment_reader *>(cookie)->seek(offset, whence);
    if (pos < 0) {
        errno = EINVAL;
    }
    return pos;
}

FILE * open_reader(segment_reader * reader) {
    return funopen(reader, cookie_read, nullptr, cookie_seek, close_reader);
}

#else

FILE * open_reader(segment_reader *) {
    errno = ENOSYS;
    return nullptr;
}

#endif

} // namespace

FILE * skippy_segments_open(const skippy_segment * segments, size_t n_segments) {
    segment_reader * reader = nullptr;
    try {
        reader = new segment_reader(segments, n_segments);
    } catch (const std::bad_alloc &) {
        errno = ENOMEM;
        return nullptr;
    }
    FILE * file = open_reader(reader);
    if (file == nullptr) {
        const int why = errno;
        delete reader;
        errno = why;
    }
    return file;
}
