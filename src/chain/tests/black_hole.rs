//! Packets that are dropped without a word.

use std::sync::Arc;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Notify,
};

use super::*;
use crate::stage::SeqId;

/// Forwards everything until it is told to swallow one direction.
struct Proxy {
    address: SocketAddr,
    swallow_down: Arc<Notify>,
    swallow_up: Arc<Notify>,
}

impl Proxy {
    async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (swallow_down, swallow_up) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (down, up) = (swallow_down.clone(), swallow_up.clone());
        tokio::spawn(async move {
            let (before, _) = listener.accept().await.unwrap();
            let behind = TcpStream::connect(to).await.unwrap();
            let ((before_in, before_out), (behind_in, behind_out)) = (before.into_split(), behind.into_split());
            tokio::join!(forward(before_in, behind_out, &down), forward(behind_in, before_out, &up));
        });
        Self { address, swallow_down, swallow_up }
    }
}

/// Never closes either side: a black hole does not say good-bye.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, swallow: &Notify) {
    let mut buffer = vec![0; 1 << 16];
    let copy = async {
        while let Ok(n @ 1..) = from.read(&mut buffer).await {
            if to.write_all(&buffer[..n]).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = copy => {}
        () = swallow.notified() => {}
    }
    while let Ok(1..) = from.read(&mut buffer).await {}
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_black_hole_in_either_direction_ends_both_ends_of_the_link() {
    let options = LinkOptions {
        keep_alive: Duration::from_millis(50),
        timeout: Duration::from_millis(300),
        ..LinkOptions::default()
    };
    for up in [false, true] {
        let mut called = Called::start(Security::default(), options.clone()).await;
        let proxy = Proxy::start(called.address).await;
        let target = format!("http://{}", proxy.address).parse().unwrap();
        let (mut link, mut session) = called.linked_by(&target, &Security::default(), &options).await;
        link.sender.send(Down::Truncate { seq: SeqId(0), n_keep: 1 }).unwrap();
        recv(&mut session).await.unwrap();
        let began = std::time::Instant::now();
        if up {
            proxy.swallow_up.notify_one()
        } else {
            proxy.swallow_down.notify_one()
        }
        let here = answer(&mut link).await.unwrap_err();
        let there = recv(&mut session).await.unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert!(matches!(here, LinkEnded::Lost(_) | LinkEnded::Closed), "{here}");
        assert!(matches!(there, LinkEnded::Lost(_) | LinkEnded::Closed), "{there}");
        drop(session);
        let (_link, _session) = called.linked().await;
    }
}
