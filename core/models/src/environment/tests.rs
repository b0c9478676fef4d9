use raddle_fakes::{Gate, Provider, Reply};

use super::*;

async fn found(variables: &[(&str, &str)]) -> FoundModels {
    let lookup =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    Models::from_environment(lookup, TimeLimits::default()).await
}

fn default_of(found: &FoundModels) -> Option<String> {
    found.default.as_ref().map(ToString::to_string)
}

async fn provider_with(models: &[&str]) -> Provider {
    let provider = Provider::start().await;
    provider.set_models(Reply::models(models));
    provider
}

#[tokio::test]
async fn a_key_gives_openai_and_a_default_that_it_has() {
    for (models, wanted, expected) in [
        (vec!["text-embedding-3", "gpt-x", "gpt-4o-mini", "gpt-4.1-mini"], "", "openai/gpt-4.1-mini"),
        (vec!["text-embedding-3", "house-model"], " ", "openai/house-model"),
        (vec!["a"], "vendor/b", "openai/vendor/b"),
        (vec!["a"], "openai/c", "openai/c"),
    ] {
        let provider = provider_with(&models).await;
        let base = provider.base_url();
        let found =
            found(&[("OPENAI_API_KEY", "sk-12345678"), ("OPENAI_BASE_URL", &base), ("RADDLE_MODEL", wanted)])
                .await;
        assert_eq!(default_of(&found).as_deref(), Some(expected));
        if wanted.trim().is_empty() {
            assert_eq!(provider.list_request(0).await.header("authorization"), Some("Bearer sk-12345678"));
        }
    }
    let provider = Provider::start().await;
    provider.set_models(Reply::error(401, "invalid_api_key", "no"));
    let found = found(&[("OPENAI_API_KEY", "sk-12345678"), ("OPENAI_BASE_URL", &provider.base_url())]).await;
    assert_eq!(default_of(&found), None);
}

#[tokio::test]
async fn local_servers_that_answer_are_providers() {
    let (empty, first, second) =
        tokio::join!(provider_with(&[]), provider_with(&["embed-1", "qwen"]), provider_with(&["gemma"]));
    let page = Provider::start().await;
    page.set_models(Reply::body(200, "text/html", "<html></html>"));
    let gone = Provider::start().await;
    let gone_url = gone.base_url();
    gone.stop().await;
    let silent = Provider::start().await;
    let gate = Gate::new();
    silent.set_models(Reply::stream().wait(&gate));
    let urls =
        [empty.base_url(), gone_url, page.base_url(), silent.base_url(), first.base_url(), second.base_url()];
    let names = ["empty", "gone", "page", "silent", "first", "second"];
    let servers: Vec<(&str, &str)> = names.into_iter().zip(urls.iter().map(String::as_str)).collect();

    let http = Arc::new(Http::new(TimeLimits::default()));
    let found = from_local(&servers, None, &http).await;
    assert_eq!(default_of(&found).as_deref(), Some("first/qwen"));
    let rows: Vec<String> =
        found.models.list().await.iter().map(|row| format!("{}/{}", row.provider, row.id)).collect();
    assert_eq!(rows, ["builtin/echo", "builtin/script", "first/embed-1", "first/qwen", "second/gemma"]);
    assert!(found.models.resolve(&"page/x".parse().unwrap()).await.is_err());

    for wanted in ["gemma", "second/gemma"] {
        let found = from_local(&servers, Some(wanted.to_owned()), &http).await;
        assert_eq!(default_of(&found).as_deref(), Some("second/gemma"));
    }
    let found = from_local(&servers[..1], None, &http).await;
    assert_eq!(default_of(&found), None);
}
