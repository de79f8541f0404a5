//! Closed label values. A label value that a client can choose does not exist.

/// Declares an enum whose variants are the values of one label.
macro_rules! label_values {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident => $value:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// Every variant.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];
            /// Every label value, in the order of [`Self::ALL`].
            pub const VALUES: &'static [&'static str] = &[$($value,)+];

            /// The label value.
            pub fn label(self) -> &'static str {
                match self { $(Self::$variant => $value,)+ }
            }
        }
    };
}

label_values! {
    /// Which generating endpoint a request came through.
    Endpoint {
        /// `POST /v1/completions`.
        Completions => "completions",
        /// `POST /v1/chat/completions`.
        Chat => "chat",
    }
}

label_values! {
    /// What a row of the `dsa` engine's cache holds.
    KvKind {
        /// Latent and rotated key of attention.
        Attention => "attention",
        /// An indexer key.
        Indexer => "indexer",
        /// Attention or indexer key of the draft head.
        Draft => "draft",
    }
}

label_values! {
    /// How a request ended. Every request that was accepted ends in exactly one.
    Finish {
        /// End of generation or a stop string.
        Stop => "stop",
        /// The token budget or the context is used up.
        Length => "length",
        /// The client has gone.
        Cancelled => "cancelled",
        /// The server failed it.
        Error => "error",
    }
}

label_values! {
    /// Where the rows of prompt tokens came from.
    PromptSource {
        /// They went through the layers.
        Computed => "computed",
        /// Another request had computed them.
        Cached => "cached",
    }
}

label_values! {
    /// What the rows of one engine step were for.
    StepPhase {
        /// Prompt tokens only.
        Prefill => "prefill",
        /// One generated token per lane only.
        Decode => "decode",
        /// Generated tokens and drafts behind them only.
        Verify => "verify",
        /// Prompts and generated tokens in one batch.
        Mixed => "mixed",
    }
}

label_values! {
    /// Place of a draft behind the token chosen last.
    DraftPosition {
        /// The next one.
        First => "1",
    }
}

label_values! {
    /// Why a request stopped drafting before its end.
    DraftingStopped {
        /// Its drafts cost more than they saved.
        LowAcceptance => "low_acceptance",
        /// The draft head gave no numbers to choose by.
        BadLogits => "bad_logits",
    }
}

label_values! {
    /// What a start of the server spends its time on.
    LoadPhase {
        /// Checking the package: manifest, sizes, digests.
        Verify => "verify",
        /// Reading weights and building the engine.
        Load => "load",
    }
}

label_values! {
    /// Which way something crosses a stage boundary, or a link.
    Direction {
        /// Into this stage; of links, the one from the stage before.
        In => "in",
        /// Out of this stage; of links, the one to the stage behind.
        Out => "out",
    }
}

label_values! {
    /// How an attempt to reach the next stage ended.
    LinkConnect {
        /// There is a link.
        Up => "up",
        /// The stages do not fit together, or the next one is busy.
        Refused => "refused",
        /// Nobody answers, or nothing may be sent there.
        Unreachable => "unreachable",
        /// Nobody answered in time.
        Timeout => "timeout",
        /// The token is missing or wrong.
        Unauthenticated => "unauthenticated",
        /// The other end does not speak the protocol.
        Protocol => "protocol",
    }
}

label_values! {
    /// Why a stage cannot go on, as it tells the stage before.
    FaultCode {
        /// The stages do not fit together.
        Refused => "refused",
        /// The engine failed.
        Engine => "engine",
        /// A stage further on is lost.
        Unavailable => "unavailable",
        /// A frame said what it must not.
        Protocol => "protocol",
        /// The stage is shutting down.
        Draining => "draining",
        /// The stage belongs to another chain.
        Busy => "busy",
        /// The KV cache has no room.
        KvFull => "kv_full",
    }
}

label_values! {
    /// Kinds of error answer, see `docs/api.md`.
    ErrorKind {
        /// The request is wrong: body, field, value, media type, size.
        InvalidRequest => "invalid_request",
        /// No API key, or one that is not valid.
        Auth => "auth",
        /// No such route, method or model.
        NotFound => "not_found",
        /// The prompt does not fit the context.
        ContextLength => "context_length",
        /// Too many requests wait already.
        QueueFull => "queue_full",
        /// The model is not loaded yet.
        Loading => "loading",
        /// The server is shutting down.
        Draining => "draining",
        /// The engine or the server itself failed.
        Engine => "engine",
        /// The request ran out of time.
        Deadline => "deadline",
        /// A further stage is lost.
        StageUnavailable => "stage_unavailable",
    }
}

label_values! {
    /// Method of an HTTP request.
    Method {
        /// GET.
        Get => "GET",
        /// POST.
        Post => "POST",
        /// HEAD.
        Head => "HEAD",
        /// OPTIONS.
        Options => "OPTIONS",
        /// Any other one.
        Other => "other",
    }
}

label_values! {
    /// Route of an HTTP request: the pattern, never the path.
    Route {
        /// Text completion.
        Completions => "/v1/completions",
        /// Conversations.
        ChatCompletions => "/v1/chat/completions",
        /// The models served.
        Models => "/v1/models",
        /// One model.
        Model => "/v1/models/{id}",
        /// Text to token ids.
        Tokenize => "/tokenize",
        /// Token ids to text.
        Detokenize => "/detokenize",
        /// The stages that serve the model.
        Chain => "/v1/chain",
        /// The resolved attention policy.
        Policy => "/v1/policy",
        /// What the policy would do.
        PolicyExplain => "/v1/policy/explain",
        /// The description of the API.
        OpenApi => "/openapi.json",
        /// An endpoint of the OpenAI API that is not served.
        Unsupported => "unsupported",
        /// Anything else.
        Unmatched => "unmatched",
    }
}

/// Status codes that have a series of their own; any other counts as `other`.
pub const STATUS_CODES: &[&str] =
    &["200", "400", "401", "404", "405", "413", "415", "429", "499", "500", "502", "503", "504", "other"];

/// The label value for a status code.
pub fn status_code(code: u16) -> &'static str {
    match code {
        200 => "200",
        400 => "400",
        401 => "401",
        404 => "404",
        405 => "405",
        413 => "413",
        415 => "415",
        429 => "429",
        499 => "499",
        500 => "500",
        502 => "502",
        503 => "503",
        504 => "504",
        _ => "other",
    }
}
