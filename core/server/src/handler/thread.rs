//! Handlers of `thread/…`.
//!
//! Neighbours: connection, page, responder.

use std::sync::Arc;

use raddle_engine::{Answer, Attach, Error, History, Live};
use raddle_protocol::RpcError;
use raddle_protocol::methods::ClientResponse;
use raddle_protocol::thread::{
    ThreadForkParams, ThreadForkResult, ThreadListParams, ThreadReadParams, ThreadResumeResult,
    ThreadSettingsUpdateParams, ThreadSettingsUpdateResult, ThreadStartParams, ThreadStartResult,
};
use tokio::sync::oneshot;

use super::page::{self, Beside, Page};
use crate::connection::Connection;
use crate::responder::Responder;

/// Times that a resume reads the history beside the running thread, to find that a turn ended meanwhile; after them the
/// thread reads it itself, doing nothing else meanwhile.
const RESUME_READS_MAX: usize = 4;

pub(crate) async fn start(connection: &Arc<Connection>, params: ThreadStartParams, responder: Responder) {
    let subscriber = connection.clone();
    let answer = responder.answer(move |thread: raddle_protocol::thread::Thread| {
        subscriber.will_subscribe(&thread.id);
        ThreadStartResult { thread, warnings: subscriber.standing_warnings() }
    });
    connection.server.engine.start_thread(params, connection.clone(), answer).await;
}

pub(crate) async fn fork(connection: &Arc<Connection>, params: ThreadForkParams, responder: Responder) {
    let subscriber = connection.clone();
    let answer = responder.answer(move |thread: raddle_protocol::thread::Thread| {
        subscriber.will_subscribe(&thread.id);
        ThreadForkResult { thread, warnings: subscriber.standing_warnings() }
    });
    connection.server.engine.fork(params, connection.clone(), answer).await;
}

pub(crate) async fn read(connection: &Arc<Connection>, params: ThreadReadParams, responder: Responder) {
    let page = Page::read(&connection.server, &params, Beside::Nothing).await;
    responder.finish(page.map(|page| page.answered(&connection.server.payloads)));
}

/// Reads a page, then subscribes and answers in one step of the thread. When a turn ended in between, the page is not
/// current any more, and it is read again.
pub(crate) async fn resume(connection: &Arc<Connection>, params: ThreadReadParams, mut responder: Responder) {
    let engine = &connection.server.engine;
    for _ in 0..RESUME_READS_MAX {
        let page = match read_loaded(connection, &params).await {
            Ok(page) => page,
            Err(error) => return responder.finish(Err::<ClientResponse, _>(error)),
        };
        let expected_head = params.cursor.is_none().then(|| page.ended_head.clone());
        let (returned, again) = oneshot::channel();
        let subscriber = connection.clone();
        let deliver = Answer::new(move |live: Result<Live, Error>| match live {
            Ok(live) => {
                subscriber.will_subscribe(&page.thread.id);
                responder.finish(Ok::<_, RpcError>(resumed(&subscriber, page, live)));
            }
            Err(Error::StaleHistory) => {
                let _ = returned.send(responder);
            }
            Err(error) => responder.finish(Err::<ClientResponse, _>(error)),
        });
        engine
            .attach(&params.thread_id, Attach { subscriber: connection.clone(), expected_head, deliver })
            .await;
        match again.await {
            Ok(same) => responder = same,
            // Answered.
            Err(_) => return,
        }
    }
    let subscriber = connection.clone();
    let deliver = Answer::new(move |read: Result<(History, Live), Error>| match read {
        Ok((history, live)) => {
            subscriber.will_subscribe(&history.thread.id);
            let page = Page::of(history, Beside::Live);
            responder.finish(Ok::<_, RpcError>(resumed(&subscriber, page, live)));
        }
        Err(error) => responder.finish(Err::<ClientResponse, _>(error)),
    });
    let ThreadReadParams { thread_id, cursor, limit } = params;
    engine.attach_reading(&thread_id, cursor, limit, connection.clone(), deliver).await;
}

async fn read_loaded(connection: &Arc<Connection>, params: &ThreadReadParams) -> Result<Page, Error> {
    // Loading closes what a crash left open, so it comes before reading.
    connection.server.engine.load(&params.thread_id).await?;
    Page::read(&connection.server, params, Beside::Live).await
}

fn resumed(connection: &Connection, page: Page, live: Live) -> ThreadResumeResult {
    page.resumed(&connection.server.payloads, live, connection.standing_warnings())
}

pub(crate) async fn list(connection: &Arc<Connection>, params: ThreadListParams, responder: Responder) {
    responder.finish(page::list(&connection.server, params).await);
}

pub(crate) async fn update_settings(
    connection: &Arc<Connection>,
    params: ThreadSettingsUpdateParams,
    responder: Responder,
) {
    let answer = responder.answer(|settings| ThreadSettingsUpdateResult { settings });
    connection.server.engine.update_settings(params, answer).await;
}
