//! Consistency groups as the user describes them.

use std::path::PathBuf;

use forebay_host::names_of;

use crate::volume_name;

/// A member, as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberPlan {
    /// Name of the volume.
    pub name: String,
    /// Control socket of its daemon, if not the default one.
    pub socket: Option<PathBuf>,
}

/// A consistency group, as the user describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    /// Its name and those of its members, in ascending order.
    pub names: String,
    /// The members, in that order.
    pub members: Vec<MemberPlan>,
}

impl GroupPlan {
    /// The group `name` of these members, each `NAME` or `NAME=SOCKET`, of which `volume` is one.
    ///
    /// # Errors
    /// One sentence.
    pub fn parse(name: &str, members: &[String], volume: &str) -> Result<Self, String> {
        volume_name::parse(name)?;
        let mut members = members
            .iter()
            .map(|text| {
                let (name, socket) =
                    text.split_once('=').map_or((text.as_str(), None), |(n, s)| (n, Some(s)));
                Ok(MemberPlan { name: volume_name::parse(name.trim())?, socket: socket.map(PathBuf::from) })
            })
            .collect::<Result<Vec<_>, String>>()?;
        members.sort_by(|a, b| a.name.cmp(&b.name));
        let known: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        if !known.contains(&volume) {
            return Err(format!("'{volume}' is not among the members of the consistency group '{name}'"));
        }
        let names = names_of(name, &known).map_err(|_| {
            format!(
                "the consistency group '{name}' needs two to eight members of different names, which together have at most \
                 168 bytes"
            )
        })?;
        Ok(Self { names, members })
    }
}
