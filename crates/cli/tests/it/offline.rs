//! What needs no database: settings, codes, fingerprints, and what a shell wants.

use steadfast::{Code, Diagnostic};

use crate::process::Call;

#[tokio::test]
async fn every_code_is_explained_without_a_database() {
    let all = Call::new("explain").run().await.ok();
    assert_eq!(all.lines().count(), Diagnostic::ALL.len() + Code::ALL.len() + 1);
    for Diagnostic {
        code,
        title,
        explanation,
        ..
    } in Diagnostic::ALL
    {
        let told = Call::new(&format!("explain {code}")).run().await.ok();
        assert_eq!(told, format!("{code}: {title}\n\n{explanation}\n"));
    }
    for code in Code::ALL {
        let told = Call::new(&format!("explain {code}")).run().await.ok();
        assert_eq!(told, format!("{code}: {}\n\n{}\n", code.title(), code.explanation()));
    }
    assert_eq!(
        Call::new("explain sf030 --json").run().await.ok(),
        "{\"code\":\"SF030\",\"title\":\"the database refused to commit\",\"explanation\":\"A deferred constraint was violated at COMMIT. Everything was rolled back and the key is free.\"}\n"
    );
    Call::new("explain SF309")
        .run()
        .await
        .refused(3, "there is no code \"SF309\"", "did you mean SF30");
    Call::new("explain tables")
        .run()
        .await
        .refused(3, "there is no code \"tables\"", "`steadfast explain` lists all");
}

#[tokio::test]
async fn a_setting_comes_from_the_flag_then_the_environment_then_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let below = directory.path().join("a/b");
    std::fs::create_dir_all(&below).unwrap();
    let file = directory.path().join("steadfast.toml");
    std::fs::write(
        &file,
        "database-url = \"postgres://ops:secret@db/shop\"\nschema = \"billing\"\n",
    )
    .unwrap();
    let call = |line: &str| Call::new(line).directory(&below);
    let file = file.canonicalize().unwrap();
    let from = async |call: Call, setting: &str| {
        let told = call.run().await.ok();
        let line = told
            .lines()
            .find(|line| line.contains(&format!("{{\"setting\":\"{setting}\"")))
            .unwrap();
        line.to_owned()
    };
    assert_eq!(
        from(call("config --json"), "database-url").await,
        format!(
            "{{\"setting\":\"database-url\",\"value\":\"postgres://ops:****@db/shop\",\"from\":\"file {}\"}}",
            file.display()
        )
    );
    assert_eq!(
        from(call("config --json").env("STEADFAST_SCHEMA", "other"), "schema").await,
        "{\"setting\":\"schema\",\"value\":\"other\",\"from\":\"environment STEADFAST_SCHEMA\"}"
    );
    assert_eq!(
        from(
            call("config --json --schema third").env("STEADFAST_SCHEMA", "other"),
            "schema"
        )
        .await,
        "{\"setting\":\"schema\",\"value\":\"third\",\"from\":\"flag\"}"
    );
    assert_eq!(
        from(call("config --json").env("NO_COLOR", "1"), "color").await,
        "{\"setting\":\"color\",\"value\":\"never\",\"from\":\"environment NO_COLOR\"}"
    );
    assert_eq!(
        from(call("config --json"), "operator").await,
        "{\"setting\":\"operator\",\"value\":\"ops\",\"from\":\"default\"}"
    );
    let told = call("config").run().await.ok();
    assert!(
        told.starts_with("setting            value ") && !told.contains("secret"),
        "{told}"
    );
}

#[tokio::test]
async fn a_settings_file_that_cannot_be_used_is_refused_by_line_and_name() {
    let directory = tempfile::tempdir().unwrap();
    for (text, cause, help) in [
        (
            "databse-url = \"sqlite://x\"",
            "there is no setting \"databse-url\"",
            "did you mean database-url?",
        ),
        (
            "schema = 7",
            "the setting \"schema\" is not a text in quotes",
            "write schema = ",
        ),
        (
            "schema = \"a\"\ndatabase-url = postgres://ops:secret@db\n",
            "line 2 is not TOML",
            "write lines such as",
        ),
        (
            "color = \"sometimes\"",
            "\"sometimes\" is not a setting of color",
            "auto, always or never",
        ),
    ] {
        std::fs::write(directory.path().join("steadfast.toml"), text).unwrap();
        let said = Call::new("config").directory(directory.path()).run().await;
        said.refused(2, cause, help);
        assert!(!said.err.contains("secret"), "{}", said.err);
    }
}

#[tokio::test]
async fn a_call_without_a_database_or_with_a_wrong_url_says_what_to_write() {
    let said = Call::new("keys list").run().await;
    said.refused(2, "no database is named", "--database-url");
    let said = Call::new("keys list --database-url mysql://root:secret@db/shop")
        .run()
        .await;
    said.refused(2, "the database URL begins with \"mysql\"", "sqlite://FILE");
    assert!(!said.err.contains("secret"), "{}", said.err);
    let said = Call::new("keys list --database-url secret").run().await;
    said.refused(2, "the database URL has no scheme", "sqlite://FILE");
    assert!(!said.err.contains("secret"), "{}", said.err);
    let said = Call::new("keys list --database-url postgres://ops:secret@db:port/shop")
        .run()
        .await;
    said.refused(
        2,
        "error[SF303]: reading the database URL",
        "write postgres://USER@HOST/NAME",
    );
    assert!(!said.err.contains("secret"), "{}", said.err);
}

#[tokio::test]
async fn a_password_is_not_repeated_wherever_a_url_was_put() {
    for (line, exit) in [
        ("keys list postgres://ops:secret@db/shop", 2),
        ("purge --databaseurl postgres://ops:secret@db/shop", 2),
        ("explain postgres://ops:secret@db/shop", 3),
        ("fingerprint --operation o postgres://ops:secret@db/shop", 3),
        ("config --database-url postgres:ops:secret@db/shop", 0),
        ("config --database-url ops:secret@db/shop", 0),
    ] {
        let said = Call::new(line).run().await;
        assert_eq!(said.exit, exit, "{line}: {}{}", said.out, said.err);
        assert!(
            !said.out.contains("secret") && !said.err.contains("secret"),
            "{}{}",
            said.out,
            said.err
        );
    }
}

#[tokio::test]
async fn a_query_is_understood_wherever_it_is_written() {
    let print = async |line: &str| {
        let call = Call::new(&format!("fingerprint --json {line}")).input("{}");
        call.run().await.ok()
    };
    let expected = print("--path /orders --query b=2&a=1").await;
    assert_eq!(print("--path /orders?b=2&a=1").await, expected);
    assert_eq!(print("--path /orders --query ?b=2&a=1 --method post").await, expected);
    assert_ne!(print("--path /orders").await, expected);
    let twice = Call::new("fingerprint --path /orders?a=1 --query b=2").run().await;
    twice.refused(2, "the query of the request is there twice", "not both");
}

#[tokio::test]
async fn a_fingerprint_says_of_what_it_is_and_is_that_of_the_library() {
    let spelled = "{ \"sku\": \"tea\", \"quantity\": 2.0 }";
    let call = Call::new("fingerprint --operation orders.place --json")
        .input(spelled)
        .run()
        .await
        .ok();
    let meaning = steadfast::Meaning::Call {
        operation: "orders.place",
        input: b"{\"quantity\":2,\"sku\":\"tea\"}",
    };
    assert_eq!(
        call,
        format!(
            "{{\"of\":\"a Rust call of orders.place: operation and input\",\"canonical\":\"{{\\\"quantity\\\":2,\\\"sku\\\":\\\"tea\\\"}}\",\"fingerprint\":\"{}\",\"policy\":\"whole\"}}\n",
            meaning.fingerprint().unwrap()
        )
    );
    let request = Call::new("fingerprint --path /orders").input(spelled).run().await.ok();
    assert!(
        request.contains("of           a request: method, path, query, media type and body\n"),
        "{request}"
    );
    assert!(
        request.contains("canonical    {\"quantity\":2,\"sku\":\"tea\"}\n"),
        "{request}"
    );
    let raw = Call::new("fingerprint --path /orders --content-type text/plain")
        .input("tea")
        .run()
        .await
        .ok();
    assert!(raw.contains("(not JSON: compared byte for byte)"), "{raw}");
    let said = Call::new("fingerprint --path /orders").input("{").run().await;
    said.refused(2, "error[SF106]: ", "must be UTF-8, complete");
    let said = Call::new("fingerprint --operation o /no/such/file").run().await;
    said.refused(3, "/no/such/file cannot be read", "for standard input");
    assert_eq!(Call::new("fingerprint").run().await.exit, 2, "of what?");
}

#[tokio::test]
async fn the_script_needs_no_database_and_ends_where_asked() {
    let script = Call::new("migrate sql --database sqlite --to 1").run().await.ok();
    assert!(
        script.contains("CREATE TABLE steadfast_keys") && !script.contains("steadfast_audit"),
        "{script}"
    );
    let script = Call::new("migrate sql --database postgres --schema billing")
        .run()
        .await
        .ok();
    assert!(
        script.contains("CREATE TABLE \"billing\".keys") && script.contains("\"billing\".audit"),
        "{script}"
    );
    let said = Call::new("migrate sql --database sqlite --to 99").run().await;
    said.refused(2, "error[SF303]: there is no migration 99", "choose one from 1 to ");
}

#[tokio::test]
async fn without_a_verb_there_is_help_and_shells_get_what_they_want() {
    let said = Call::new("").run().await;
    assert!(
        said.exit == 2 && said.err.contains("Usage: steadfast") && said.err.contains("Exit codes: 0 ok"),
        "{}",
        said.err
    );
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            Call::new(&format!("completions {shell}"))
                .run()
                .await
                .ok()
                .contains("steadfast")
        );
    }
    assert!(Call::new("man").run().await.ok().starts_with(".ie"));
    let directory = tempfile::tempdir().unwrap();
    let pages = format!("man --directory {}", directory.path().display());
    Call::new(&pages).run().await.ok();
    assert!(directory.path().join("steadfast-keys-forget.1").exists());
}
