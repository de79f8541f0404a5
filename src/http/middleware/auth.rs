//! Lets requests with a valid key pass, all when there are no keys.

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::http::{
    AppState,
    auth::Refusal,
    error::{ApiError, ErrorCode},
};

pub(in crate::http) async fn check(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let message = match state.options().api_keys.admit(request.headers()) {
        Ok(()) => return next.run(request).await,
        Err(Refusal::Missing) => "this server wants an API key, as `Authorization: Bearer KEY` or `X-Api-Key: KEY`",
        Err(Refusal::Wrong) => "the API key is not valid",
    };
    ApiError::new(ErrorCode::InvalidApiKey, message).into_response()
}
