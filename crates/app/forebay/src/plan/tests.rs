use super::*;
use crate::cli::{Cli, Command};
use clap::Parser;
use forebay_policy::OnFull;

fn plan(args: &[&str]) -> Result<Plan, Failure> {
    let cli = Cli::try_parse_from(["forebay", "serve"].iter().chain(args)).unwrap();
    match cli.command {
        Command::Serve(args) => Plan::make(args),
        _ => unreachable!(),
    }
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

const TWO: &str = r#"
        [[volume]]
        name = "a"
    cache = "a.cache"
    backing = "a.img"
    on-full = "bypass"
    [[volume]]
    name = "b"
    backing = "b.img"
    no-cache = true
"#;

#[test]
fn flags_alone_are_a_plan() {
    let plan = plan(&[
        "--name",
        "db",
        "--cache",
        "pmem:/c",
        "--backing",
        "b",
        "--nbd",
        "unix:/s",
        "--durability",
        "flush",
    ]);
    let plan = plan.unwrap();
    let v = &plan.volumes[0];
    assert_eq!((v.name.as_str(), v.cache.as_ref().unwrap().to_string()), ("db", "pmem:/c".into()));
    assert_eq!(v.settings.durability.as_str(), "flush");
    assert_eq!(v.settings.write_policy, Settings::default().write_policy);
    assert!(!plan.destage_on_stop);
}

#[test]
fn flags_win_over_the_file() {
    let f = file(TWO);
    let path = f.path().to_str().unwrap();
    let all = plan(&["--config", path, "--write-policy", "write-through", "--destage-on-stop"]).unwrap();
    assert!(all.destage_on_stop);
    assert!(all.volumes.iter().all(|v| v.settings.write_policy == WritePolicy::WriteThrough));
    assert_eq!(all.volumes[0].settings.on_full, OnFull::Bypass);
    assert!(all.volumes[1].cache.is_none());
    let one = plan(&["--config", path, "--name", "b", "--cache", "c", "--on-full", "wait"]).unwrap();
    assert_eq!(one.volumes.len(), 1);
    assert!(one.volumes[0].cache.as_ref().unwrap().to_string().ends_with("/c"));
    let one = plan(&["--config", path, "--name", "a", "--no-cache", "--destage-on-stop=no"]).unwrap();
    assert!(one.volumes[0].cache.is_none() && !one.destage_on_stop);
}

#[test]
fn sockets_are_for_the_user_alone_unless_told_otherwise() {
    let f = file(&format!("socket-mode = \"0660\"\nsocket-group = \"root\"\n{TWO}"));
    let path = f.path().to_str().unwrap();
    let socket = |flags: &[&str]| plan(flags).unwrap().socket;
    let alone = ["--name", "db", "--backing", "b", "--no-cache"];
    assert_eq!(socket(&alone), SocketRights { mode: 0o600, group: None });
    assert_eq!(socket(&["--config", path]), SocketRights { mode: 0o660, group: Some(0) });
    let alone_group = [&alone[..], &["--socket-group", "0"]].concat();
    assert!(plan(&alone_group).unwrap_err().message.contains("socket-mode 0660"));
    let flags = ["--config", path, "--socket-mode", "666", "--socket-group", "7"];
    assert_eq!(socket(&flags), SocketRights { mode: 0o666, group: Some(7) });
}

#[test]
fn whose_hints_are_believed_is_chosen_for_all_volumes() {
    let f = file("hints = \"none\"\n[[volume]]\nname = \"a\"\nno-cache = true\nbacking = \"a\"\n");
    let hints = |args: &[&str]| plan(args).map(|plan| plan.hints.to_string());
    let path = f.path().to_str().unwrap();
    assert_eq!(hints(&["--config", path]).unwrap(), "none");
    assert_eq!(hints(&["--config", path, "--hints", "user=app"]).unwrap(), "user=app");
    let bare = ["--name", "db", "--cache", "c", "--backing", "b"];
    assert_eq!(hints(&bare).unwrap(), "all");
}

#[test]
fn a_set_of_rules_can_be_for_one_user() {
    let planned = |rules: &str| {
        plan(&["--name", "db", "--cache", "c", "--backing", "b", "--rules", rules]).unwrap().rules
    };
    let gullible = |rules: &str| planned(rules).gullible().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(gullible("servers"), ["servers:1"]);
    assert_eq!(gullible("servers@app"), Vec::<String>::new());
    let title = file("[[rule]]\ntitle = \"x\"\ncritical = false\n[[rule]]\ntitle = \"y\"\ncritical = true\n");
    let path = title.path().to_str().unwrap();
    assert_eq!(gullible(path), [format!("{path}:2")]);
}

#[test]
fn clients_of_one_address_may_be_critical_and_those_of_another_not() {
    let planned = |more: &str, flags: &[&str]| {
        let f = file(&format!("[[volume]]\nname = \"a\"\nno-cache = true\nbacking = \"a\"\n{more}\n"));
        plan(&[&["--config", f.path().to_str().unwrap()], flags].concat())
    };
    let told = |plan: Plan| {
        let addresses = plan.volumes[0].addresses();
        addresses.map(|(address, critical)| format!("{address} {critical}")).collect::<Vec<_>>()
    };
    let both = "nbd = [\"unix:/a\"]\ncritical-nbd = [\"unix:/c\"]\ncritical-rate = \"1M\"";
    assert_eq!(told(planned(both, &[]).unwrap()), ["unix:/a false", "unix:/c true"]);
    assert_eq!(told(planned(both, &["--critical"]).unwrap()), ["unix:/a true", "unix:/c true"]);
    let flags = ["--critical-nbd", "unix:/f", "--critical-rate", "1M"];
    let one = planned(both, &flags).unwrap();
    assert_eq!(one.volumes[0].critical_rate, Some(1 << 20));
    assert_eq!(told(one), ["unix:/a false", "unix:/f true"]);
    assert_eq!(told(planned("", &flags).unwrap()), ["unix:/f true"]);
    let error = planned(both, &["--critical-nbd", "unix:/a"]).unwrap_err().to_string();
    assert!(error.contains("both as nbd and as critical-nbd"), "{error}");
}

#[test]
fn a_rate_is_for_the_volumes_that_are_critical() {
    let volume = |name: &str, more: &str| {
        format!("[[volume]]\nname = \"{name}\"\nno-cache = true\nbacking = \"{name}\"\n{more}\n")
    };
    let planned = |text: &str, flags: &[&str]| {
        let f = file(text);
        plan(&[&["--config", f.path().to_str().unwrap()], flags].concat())
    };
    let one = volume("a", "critical = true") + &volume("b", "");
    let rates = |plan: Plan| plan.volumes.iter().map(|v| v.critical_rate).collect::<Vec<_>>();
    assert_eq!(rates(planned(&one, &["--critical-rate", "1M"]).unwrap()), [Some(1 << 20), None]);
    let both = planned(&one, &["--critical-rate", "1M", "--critical"]).unwrap();
    assert_eq!(rates(both), [Some(1 << 20); 2]);
    let off = volume("a", "critical = false\ncritical-rate = \"1M\"");
    assert!(planned(&off, &[]).is_ok(), "it may be turned on again");
    for (text, flags) in
        [(volume("a", ""), &["--critical-rate", "1M"][..]), (volume("a", "critical-rate = \"1M\""), &[])]
    {
        let error = planned(&text, flags).unwrap_err().to_string();
        assert!(error.contains("critical-rate"), "{error}");
    }
}

#[test]
fn what_is_missing_or_does_not_fit_is_wrong_usage() {
    let f = file(TWO);
    let path = f.path().to_str().unwrap();
    let empty = file("");
    for (args, words) in [
        (&["--name", "db", "--cache", "c"][..], "no backing"),
        (&["--name", "db", "--backing", "c"], "--no-cache"),
        (&["--config", path, "--cache", "c"], "choose one with --name"),
        (&["--config", path, "--name", "c"], "has no volume 'c'"),
        (&["--config", empty.path().to_str().unwrap()], "has no [[volume]]"),
        (
            &["--name", "db", "--cache", "c", "--backing", "b", "--rules", "oracle"],
            "postgresql, redis, mariadb, mongodb",
        ),
        (&["--name", "db", "--cache", "floppy:c", "--backing", "b"], "pmem:PATH"),
        (&["--name", "db", "--cache", "c", "--backing", "emulate:remote"], "file=PATH is missing"),
    ] {
        let e = plan(args).unwrap_err();
        assert_eq!(e.kind, FailureKind::Usage);
        assert!(e.message.contains(words), "{args:?}: {e}");
    }
}
