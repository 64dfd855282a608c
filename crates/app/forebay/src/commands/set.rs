//! `forebay set`: change settings of a running volume.

use std::path::PathBuf;

use forebay_control::{Answer, FailureKind, Request};
use forebay_policy::Settings;

use super::ask;
use crate::changes::Changes;
use crate::failure::{Failure, Outcome};
use crate::volume_name;

/// Arguments of `forebay set`.
#[derive(clap::Args)]
#[command(after_help = "Example: forebay set db write-policy=write-through on-full=bypass")]
pub struct Args {
    /// The volume
    #[arg(value_parser = volume_name::parse)]
    name: String,

    /// Settings to change, all at once or, if one is not understood, none. KEY is write-policy, order, group-size,
    /// group-age, group-ends, max-staleness, admission, journal-caching, on-full, durability, scheduler, ranges or endurance.
    /// VALUE is as for the flag of `forebay serve` of that name. Its other flags are for the start alone
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = pair)]
    settings: Vec<(String, String)>,

    /// The daemon's control socket, if not the default one
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
}

/// The volume uses the new settings for writes that arrive once this has ended well.
pub fn run(args: Args) -> Outcome {
    let mut keys: Vec<&str> = args.settings.iter().map(|(key, _)| key_of(key)).collect();
    keys.sort_unstable();
    if let Some(twice) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
        let message = format!("{} is given twice; give each setting one value", twice[0]);
        return Err(Failure::new(FailureKind::Usage, message));
    }
    let request = Request::Set { volume: args.name.clone(), settings: args.settings };
    if let Answer::Warned(warnings) = ask(&args.name, args.control, &request, |_| {})? {
        warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    }
    Ok(())
}

/// What a key is called beside its alias.
fn key_of(key: &str) -> &str {
    if key == "admit" { "admission" } else { key }
}

/// Reads KEY=VALUE, and refuses what no daemon of this version would understand.
fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or_else(|| format!("'{text}' is not of the form KEY=VALUE"))?;
    Changes::of(Settings::default()).set(key, value)?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_checked_before_they_are_sent() {
        assert_eq!(pair("on-full=bypass"), Ok(("on-full".into(), "bypass".into())));
        assert!(pair("on-full").unwrap_err().contains("KEY=VALUE"));
        assert!(pair("on-full=explode").unwrap_err().contains("wait, bypass"));
        assert!(pair("endurance=20G").is_ok() && pair("endurance=much").is_err());
        assert!(pair("ranges=0-16M,1G-2G").is_ok());
        assert!(pair("ranges=16M").unwrap_err().contains("0-16M"));
        assert!(pair("colour=red").unwrap_err().contains("write-policy"));
    }

    #[test]
    fn the_help_names_every_key() {
        use clap::CommandFactory;
        let cli = crate::cli::Cli::command();
        let set = cli.find_subcommand("set").unwrap();
        let help = set.get_arguments().find(|arg| arg.get_id() == "settings").unwrap().get_help().unwrap();
        let help = help.to_string();
        for key in Changes::keys() {
            assert!(help.contains(&format!(" {key}")), "{key}: {help}");
        }
    }
}
