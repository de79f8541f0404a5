//! HTTP metrics, from the request to the end of the response body.

use axum::{
    extract::{MatchedPath, Request},
    http::Method,
    middleware::Next,
    response::Response,
};

use super::body::{self, BodyWatch};
use crate::{
    http::routes,
    telemetry::{labels, metrics::HttpRequest},
};

pub(in crate::http) async fn track(request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let route = routes::label(request.extensions().get::<MatchedPath>().map(MatchedPath::as_str));
    let mut counted = HttpRequest::start(method_label(&method), route);
    let response = next.run(request).await;
    counted.responded(response.status().as_u16());
    body::watch(&method, response, counted)
}

impl BodyWatch for HttpRequest {
    fn ended(&mut self) {
        self.body_ended();
    }
}

pub(super) fn method_label(method: &Method) -> labels::Method {
    match *method {
        Method::GET => labels::Method::Get,
        Method::POST => labels::Method::Post,
        Method::HEAD => labels::Method::Head,
        Method::OPTIONS => labels::Method::Options,
        _ => labels::Method::Other,
    }
}
