//! Links on loopback, in one process.

mod black_hole;
mod faults;
mod handshakes;
mod sessions;
mod trust;

use std::{net::SocketAddr, time::Duration};

use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    codec::tests::{hello, info, step},
    *,
};

/// Longer than anything here may take, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A stage that listens; it ends when this is dropped.
struct Called {
    address: SocketAddr,
    sessions: mpsc::Receiver<Session>,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), ListenError>>,
}

impl Drop for Called {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Called {
    async fn start(security: Security, options: LinkOptions) -> Self {
        Self::start_as(local(), security, options).await
    }

    async fn start_as(local: LocalStage, security: Security, options: LinkOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let (sender, sessions) = mpsc::channel(1);
        let stop = shutdown.clone().cancelled_owned();
        let serving =
            tokio::spawn(async move { listen::serve(listener, local, security, &options, sender, stop).await });
        Self { address, sessions, shutdown, serving }
    }

    async fn plain() -> Self {
        Self::start(Security::default(), LinkOptions::default()).await
    }

    fn target(&self) -> Target {
        format!("http://{}", self.address).parse().unwrap()
    }

    async fn connect(&self) -> Result<Link, LinkError> {
        link::connect(&self.target(), hello(), &Security::default(), &LinkOptions::default()).await
    }

    async fn session(&mut self) -> Session {
        timeout(LONG, self.sessions.recv()).await.unwrap().unwrap()
    }

    /// Both ends of a link that is up.
    async fn linked(&mut self) -> (Link, Session) {
        let (target, options) = (self.target(), LinkOptions::default());
        self.linked_by(&target, &Security::default(), &options).await
    }

    async fn linked_by(&mut self, target: &Target, security: &Security, options: &LinkOptions) -> (Link, Session) {
        let welcomed = async {
            let session = self.session().await;
            session.replies.send(Up::Welcome(vec![info()])).unwrap();
            session
        };
        let (link, session) = tokio::join!(link::connect(target, hello(), security, options), welcomed);
        (link.unwrap(), session)
    }
}

fn local() -> LocalStage {
    LocalStage { info: info(), model_id: hello().model_id, vocabulary: 100 }
}

/// A step that f16 can hold.
fn small() -> StepFrame {
    StepFrame { hidden: vec![0.5; 8], ..step() }
}

async fn recv(session: &mut Session) -> Result<Down, LinkEnded> {
    timeout(LONG, session.frames.recv()).await.unwrap()
}

async fn answer(link: &mut Link) -> Result<Up, LinkEnded> {
    timeout(LONG, link.receiver.recv()).await.unwrap()
}

/// Waits until `true`.
async fn until(mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LONG, wait).await.unwrap();
}
