//! How spans are cut.

use super::{
    super::spans::{PIECE_ROWS, SpanWork, chunks},
    *,
};
use crate::policy::Path;

fn dims() -> Dims {
    Dims::new(stage().config())
}

#[test]
fn pieces_cover_every_row_once_and_start_where_selection_starts() {
    let dims = dims();
    assert_eq!(dims.top_k, 16);
    for path in Path::ALL {
        for few in [false, true] {
            for pos in [0i64, 1, 15, 16, 17, 200] {
                for n in [1i64, 15, 16, 17, 100, 1000] {
                    let work = SpanWork { base: 512, room: 1 << 21, pos, first: 0, n, path: *path, unselected: false };
                    let (covered, pieces) = chunks(&dims, &work, few);
                    assert_eq!(covered, (16 - pos).clamp(0, n), "{work:?}");
                    let mut next = covered;
                    for (first, rows) in pieces {
                        // ggml's flash attention would round a row differently beside others.
                        let alone = few && matches!(path, Path::Dense | Path::Fallback);
                        assert!(first == next && rows > 0 && (!alone || rows == 1), "{work:?}");
                        assert_eq!(first / PIECE_ROWS, (first + rows - 1) / PIECE_ROWS, "in one piece: {work:?}");
                        next = first + rows;
                    }
                    assert_eq!(next, n, "{work:?}");
                    let all = chunks(&dims, &SpanWork { unselected: true, ..work }, few);
                    assert_eq!(all, (n, Vec::new()), "whoever attends to everything selects nothing");
                }
            }
        }
    }
}

/// Far into a context of a million rows, chunks with a mask shrink rather than their masks grow; the others need none.
#[test]
fn long_contexts_make_small_chunks() {
    let dims = Dims { top_k: 2048, latent: 512, rope: 64, ..dims() };
    for path in Path::ALL {
        let work = SpanWork { base: 0, room: 1 << 21, pos: 1 << 20, first: 0, n: 512, path: *path, unselected: false };
        let (_, pieces) = chunks(&dims, &work, false);
        let most = pieces.iter().map(|(_, n)| *n).max().unwrap();
        assert!((1..=64).contains(&most), "{}: {most}", path.label());
        let masked = matches!(path, Path::Dense | Path::Fallback);
        assert!(!masked || most * (work.pos + 512) * 2 <= 32 << 20, "{}: a mask of {most} rows", path.label());
        assert!(masked || *path == Path::CompactFlash || most == 64, "{}: {most} rows", path.label());
    }
}
