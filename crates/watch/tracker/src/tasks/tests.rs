use super::*;

fn rules(text: &str) -> Rules {
    Rules::parse(text).unwrap()
}

fn critical() -> Role {
    Role { critical: Critical::Yes, ruled: true, ..Role::default() }
}

#[test]
fn this_process_is_found_by_every_kind_of_rule() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let exe = std::env::current_exe().unwrap().display().to_string();
    let uid = fs::metadata("/proc/self").unwrap().uid();
    let pid = std::process::id();
    let text = |file: &str| fs::read_to_string(format!("/proc/self/{file}")).unwrap();
    let cgroups = text("cgroup");
    let cgroup = cgroups.lines().find_map(|l| l.strip_prefix("0::")).map(|c| format!("cgroup = \"{c}\""));
    let mut rules_for_it =
        vec![format!("port = {port}"), format!("exe = \"{exe}\""), format!("user = \"{uid}\"")];
    rules_for_it.extend([format!("thread = \"{}\"", text("comm").trim_end()), format!("title = \"{exe}*\"")]);
    rules_for_it.extend(cgroup);
    for rule in rules_for_it {
        let mut tasks =
            Tasks::new(rules(&format!("[[rule]]\nname = \"me\"\n{rule}\ncritical = true")), Hints::default());
        tasks.scan();
        let Changes { roles, ruled, named } = tasks.take_changes();
        assert!(roles.contains(&(pid, critical())) && ruled.contains(&(pid, Critical::Yes)), "{rule}");
        assert!(named.contains(&(pid, Label { rule: Some(0), named: true, rate: 0 })), "{rule}");
        tasks.scan();
        tasks.classify(pid, pid);
        let Changes { roles, ruled, .. } = tasks.take_changes();
        let told = roles.into_iter().map(|(tid, _)| tid).chain(ruled.into_iter().map(|(tid, _)| tid));
        assert!(!told.into_iter().any(|tid| tid == pid), "nothing has changed");
    }
}

#[test]
fn a_child_that_closed_its_parents_socket_still_belongs_to_the_port() {
    use std::os::fd::AsRawFd;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // SAFETY: the child makes two system calls and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            libc::close(listener.as_raw_fd());
            libc::pause();
            libc::_exit(0);
        }
    }
    let child = u32::try_from(child).unwrap();
    let closed = || !ports(child).contains(&port);
    while !closed() {
        std::thread::yield_now();
    }
    let mut tasks = Tasks::new(rules(&format!("[[rule]]\nport = {port}\ncritical = true")), Hints::default());
    tasks.classify(child, child);
    tasks.classify(1, 1);
    // SAFETY: it is a child of this process that nobody has waited for.
    unsafe {
        libc::kill(child as i32, libc::SIGKILL);
        libc::waitpid(child as i32, std::ptr::null_mut(), 0);
    }
    assert_eq!(tasks.take_changes().roles, [(child, critical()), (1, Role::default())]);
}

#[test]
fn a_changed_title_is_followed() {
    let mut shell = std::process::Command::new("sh");
    let shell = shell.args(["-c", "read x; exec sleep 77"]).stdin(std::process::Stdio::piped());
    let mut child = shell.spawn().unwrap();
    let pid = child.id();
    let mut tasks = Tasks::new(rules("[[rule]]\ntitle = \"sleep 77\"\ncritical = true"), Hints::default());
    tasks.scan();
    assert!(!tasks.take_changes().roles.contains(&(pid, critical())));
    drop(child.stdin.take());
    while title(pid) != "sleep 77" {
        std::thread::yield_now();
    }
    tasks.scan();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(tasks.take_changes().roles.contains(&(pid, critical())));
}

/// What the rules say of a process that runs a copy of `sleep` with this title, as the user nobody if there is one to be.
fn said_of(rules: &Rules, exe: &std::path::Path, title: &str, while_it_runs: impl FnOnce()) -> Role {
    use std::os::unix::process::CommandExt;
    let mut command = std::process::Command::new(exe);
    command.arg0(title).arg("77");
    // SAFETY: it asks for a number alone.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(65_534).gid(65_534);
    }
    let mut child = command.spawn().unwrap();
    // It runs when it has the title.
    while !super::title(child.id()).starts_with(title) {
        std::thread::yield_now();
    }
    while_it_runs();
    let mut tasks = Tasks::new(rules.clone(), Hints::default());
    tasks.classify(child.id(), child.id());
    let Changes { roles, .. } = tasks.take_changes();
    child.kill().unwrap();
    child.wait().unwrap();
    let [(_, role)] = roles[..] else { panic!("{roles:?}") };
    role
}

#[test]
fn an_impostor_is_not_critical() {
    let rules = Rules::preset("postgresql").unwrap();
    let sleep = std::path::Path::new("/usr/bin/sleep");
    assert_eq!(said_of(&rules, sleep, "postgres: x", || ()), Role::default());
    // What it runs may have any name.
    let dir = std::env::temp_dir().join(format!("forebay-impostor-{}", std::process::id()));
    fs::create_dir(&dir).unwrap();
    let copy = dir.join("postgres");
    fs::copy(sleep, &copy).unwrap();
    assert_eq!(
        said_of(&rules, &copy, "postgres: x", || ()),
        critical(),
        "it is root's, or whose the daemon is"
    );
    let writable = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&copy, writable).unwrap();
    assert_eq!(
        said_of(&rules, &copy, "postgres: x", || ()),
        Role::default(),
        "anybody could have written it"
    );
    // SAFETY: it asks for a number alone.
    if unsafe { libc::geteuid() } == 0 {
        let writable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&copy, writable).unwrap();
        std::os::unix::fs::chown(&copy, Some(65_534), None).unwrap();
        assert_eq!(said_of(&rules, &copy, "postgres: x", || ()), Role::default(), "it is nobody's");
    }
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_program_that_an_upgrade_has_replaced_is_still_known() {
    let rules = Rules::preset("postgresql").unwrap();
    let dir = std::env::temp_dir().join(format!("forebay-upgrade-{}", std::process::id()));
    fs::create_dir(&dir).unwrap();
    let copy = dir.join("postgres");
    fs::copy("/usr/bin/sleep", &copy).unwrap();
    let role = said_of(&rules, &copy, "postgres: x", || fs::remove_dir_all(&dir).unwrap());
    assert_eq!(role, critical());
}

#[test]
fn only_those_are_heard_whose_hints_are_believed() {
    // SAFETY: it asks for a number alone.
    let user = unsafe { libc::geteuid() };
    let pid = std::process::id();
    for (hints, heard) in [
        ("all".to_owned(), false),
        ("none".to_owned(), false),
        (format!("user={user}"), true),
        (format!("user={}", user + 1), false),
    ] {
        let mut tasks = Tasks::new(Rules::default(), hints.parse().unwrap());
        tasks.classify(pid, pid);
        assert_eq!(tasks.take_changes().roles, [(pid, Role { heard, ..Role::default() })], "{hints}");
    }
}

#[test]
fn what_has_no_program_is_looked_at_in_its_turn() {
    let pid = std::process::id();
    let mut tasks = Tasks::new(rules("[[rule]]\nexe = \"*\"\ncritical = true"), Hints::default());
    // As if this process had been a thread of the kernel when it was listed.
    let kernels = || Process { title: String::new(), has_no_program: true, listed: true };
    tasks.processes.insert(pid, kernels());
    let found = |tasks: &mut Tasks| {
        tasks.scan();
        tasks.take_changes().roles.iter().any(|(tid, _)| *tid == pid)
    };
    let scans = (1..=LOOK_AGAIN_IN).position(|_| found(&mut tasks)).unwrap();
    assert_eq!(scans as u32, (pid + LOOK_AGAIN_IN - 1) % LOOK_AGAIN_IN);
    assert!(!tasks.processes[&pid].has_no_program);
    // It has come to one, and that was told.
    tasks.processes.insert(pid, kernels());
    tasks.classify(pid, pid);
    assert!(!tasks.processes[&pid].has_no_program);
}

#[test]
fn what_may_have_been_forgotten_is_told_again() {
    let pid = std::process::id();
    let mut tasks =
        Tasks::new(rules("[[rule]]\nname = \"me\"\nexe = \"*\"\ncritical = true"), Hints::default());
    let classified = |tasks: &mut Tasks| {
        tasks.classify(pid, pid);
        tasks.take_changes().roles
    };
    assert_eq!(classified(&mut tasks), [(pid, critical())]);
    assert_eq!(classified(&mut tasks), []);
    tasks.tell_again(pid);
    assert_eq!(classified(&mut tasks), [(pid, critical())]);
    tasks.tell_all_again();
    tasks.scan();
    assert!(tasks.take_changes().roles.contains(&(pid, critical())));
    // What has ended is not spoken of any more: its number may be another's.
    tasks.tell_again(pid);
    tasks.classify(pid, pid);
    assert!(tasks.forget(pid).is_some_and(|gone| gone.role.ruled));
    assert_eq!(tasks.take_changes(), Changes::default());
    // That the next one is nothing in particular is told: of the one before it was told otherwise, perhaps only just then.
    let mut tasks = Tasks::new(Rules::default(), Hints::default());
    assert_eq!(classified(&mut tasks), [(pid, Role::default())]);
    assert_eq!(classified(&mut tasks), []);
    assert!(tasks.forget(pid).is_some());
    assert_eq!(classified(&mut tasks), [(pid, Role::default())]);
}

#[test]
fn of_whom_nothing_can_be_remembered_all_is_told() {
    let pid = std::process::id();
    let mut tasks = Tasks::new(Rules::default(), Hints::default());
    let task = |process| Task { process, role: Role::default(), labelled: false, told: true };
    tasks.tasks = (1 << 22..).take(TASKS_MAX).map(|tid| (tid, task(tid))).collect();
    tasks.classify(pid, pid);
    assert_eq!(tasks.tasks.len(), TASKS_MAX);
    assert_eq!(tasks.take_changes().roles, [(pid, Role::default())]);
}

#[test]
fn others_are_not_critical_and_are_called_by_their_name() {
    let mut tasks = Tasks::new(Rules::default(), Hints::default());
    tasks.scan();
    let Changes { roles, ruled, named } = tasks.take_changes();
    assert!(roles.iter().all(|(_, role)| *role == Role::default()));
    assert_eq!((ruled, named), (Vec::new(), Vec::new()));
    let plain = |comm: &[u8]| Rules::default().words(Name::of_thread(comm));
    assert_eq!(plain(b"kworker/u8:3-events_unbound"), "kworker");
    assert_eq!(plain(b"jbd2/loop0-8\0\0\0\0"), "jbd2");
    assert_eq!(plain(b"a/b"), "a/b");
    assert_eq!(plain(b"longer than it can be"), "longer than it ");
}

#[test]
fn only_listening_sockets_of_the_process_count() {
    let table = "  sl  local_address rem_address   st\n   0: 0100007F:1538 00000000:0000 0A 0:0 0:0 0 0 0 77 1\n   \
                 1: 0100007F:1539 00000000:0000 01 0:0 0:0 0 0 0 77 1\n   2: 0100007F:153A 00000000:0000 0A 0:0 0:0 0 0 0 78 1\n";
    assert_eq!(listening(table, &["77".to_owned()]), [0x1538]);
}
