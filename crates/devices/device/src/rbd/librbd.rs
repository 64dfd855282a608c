//! Ceph's libraries, loaded when the first image is opened: a program that opens none runs without them.
//!
//! What is declared here is their stable C interface (librados 2, librbd 1). Each wrapper owns what it has opened. What an operation
//! reads into or writes from belongs to its [`Call`] until the library has told its end, whatever becomes of the device.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use forebay_block::{Buf, BufMut};
use libc::{iovec, size_t, ssize_t};
use libloading::Library;

type Handle = *mut c_void;
type EndOfCall = unsafe extern "C" fn(completion: Handle, argument: *mut c_void);

/// Of a lock: one client alone.
const LOCK_MODE_EXCLUSIVE: c_int = 0;
/// Of an image: it can be cloned, and be a clone.
const FEATURE_LAYERING: u64 = 1;
/// It can be locked so.
const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
/// Of zeroes: nothing is given back.
const ZEROES_THICK: c_int = 1;
/// Longest names and lists that are asked for.
const NAME_BYTES_MAX: usize = 4096;
const LIST_MAX: usize = 1024;

/// `rbd_image_info_t`.
#[repr(C)]
struct ImageInfo {
    size: u64,
    object_size: u64,
    objects: u64,
    order: c_int,
    block_name_prefix: [c_char; 24],
    parent_pool: i64,
    parent_name: [c_char; 96],
}

/// `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Clone)]
struct Watcher {
    address: *mut c_char,
    id: i64,
    cookie: u64,
}

/// `rbd_config_option_t`.
#[repr(C)]
#[derive(Clone)]
struct Setting {
    name: *mut c_char,
    value: *mut c_char,
    source: c_int,
}

macro_rules! functions {
    ($($library:ident $name:ident($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
            /// What the functions are in; never unloaded, for the libraries have threads.
            _libraries: [Library; 2],
        }

        impl Functions {
            fn find(rados: Library, rbd: Library) -> Result<Self, libloading::Error> {
                let libraries = (&rados, &rbd);
                Ok(Self {
                    $(
                        // SAFETY: the library's documented interface has a function of this name and type.
                        $name: *unsafe { functions!(@of libraries $library).get(concat!(stringify!($name), "\0"))? },
                    )*
                    _libraries: [rados, rbd],
                })
            }
        }
    };
    (@of $libraries:ident rados) => { $libraries.0 };
    (@of $libraries:ident rbd) => { $libraries.1 };
}

functions! {
    rados rados_create(*mut Handle, *const c_char) -> c_int;
    rados rados_conf_read_file(Handle, *const c_char) -> c_int;
    rados rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
    rados rados_connect(Handle) -> c_int;
    rados rados_shutdown(Handle);
    rados rados_getaddrs(Handle, *mut *mut c_char) -> c_int;
    rados rados_blocklist_add(Handle, *mut c_char, u32) -> c_int;
    rados rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
    rados rados_ioctx_set_namespace(Handle, *const c_char);
    rados rados_set_pool_full_try(Handle);
    rados rados_ioctx_destroy(Handle);
    rados rados_getxattr(Handle, *const c_char, *const c_char, *mut c_char, size_t) -> c_int;
    rados rados_setxattr(Handle, *const c_char, *const c_char, *const c_char, size_t) -> c_int;
    rbd rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd rbd_close(Handle) -> c_int;
    rbd rbd_create2(Handle, *const c_char, u64, u64, *mut c_int) -> c_int;
    rbd rbd_remove(Handle, *const c_char) -> c_int;
    rbd rbd_stat(Handle, *mut ImageInfo, size_t) -> c_int;
    rbd rbd_get_stripe_count(Handle, *mut u64) -> c_int;
    rbd rbd_get_features(Handle, *mut u64) -> c_int;
    rbd rbd_get_id(Handle, *mut c_char, size_t) -> c_int;
    rbd rbd_lock_acquire(Handle, c_int) -> c_int;
    rbd rbd_list_lockers(
        Handle, *mut c_int, *mut c_char, *mut size_t, *mut c_char, *mut size_t, *mut c_char, *mut size_t, *mut c_char, *mut size_t
    ) -> ssize_t;
    rbd rbd_lock_break(Handle, c_int, *const c_char) -> c_int;
    rbd rbd_watchers_list(Handle, *mut Watcher, *mut size_t) -> c_int;
    rbd rbd_watchers_list_cleanup(*mut Watcher, size_t);
    rbd rbd_config_image_list(Handle, *mut Setting, *mut c_int) -> c_int;
    rbd rbd_config_image_list_cleanup(*mut Setting, c_int);
    rbd rbd_aio_create_completion(*mut c_void, EndOfCall, *mut Handle) -> c_int;
    rbd rbd_aio_get_return_value(Handle) -> ssize_t;
    rbd rbd_aio_release(Handle);
    rbd rbd_aio_read(Handle, u64, size_t, *mut c_char, Handle) -> c_int;
    rbd rbd_aio_writev(Handle, *const iovec, c_int, u64, Handle) -> c_int;
    rbd rbd_aio_write_zeroes(Handle, u64, size_t, Handle, c_int, c_int) -> c_int;
    rbd rbd_aio_flush(Handle, Handle) -> c_int;
}

/// The libraries; they are looked for once.
///
/// # Errors
/// What is missing, and where it is to be had.
fn functions() -> io::Result<&'static Functions> {
    static FUNCTIONS: OnceLock<Result<Functions, String>> = OnceLock::new();
    let found = FUNCTIONS.get_or_init(|| {
        let open = |name: &str, package: &str| {
            // SAFETY: what the libraries do when they are loaded is to prepare their own variables.
            unsafe { Library::new(name) }.map_err(|e| {
                format!(
                    "{name} cannot be loaded, which is in the package {package} (`apt install librbd1`): {e}"
                )
            })
        };
        let (rados, rbd) = (open("librados.so.2", "librados2")?, open("librbd.so.1", "librbd1")?);
        Functions::find(rados, rbd).map_err(|e| format!("the installed librbd is too old: {e}"))
    });
    found.as_ref().map_err(|why| io::Error::new(io::ErrorKind::Unsupported, why.clone()))
}

/// What the libraries answer: negative if it is an errno.
fn answered(answer: c_int) -> io::Result<usize> {
    usize::try_from(answer).map_err(|_| io::Error::from_raw_os_error(-answer))
}

fn c_string(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// # Safety
/// It is null or a C string.
unsafe fn text(c: *const c_char) -> String {
    if c.is_null() {
        return String::new();
    }
    // SAFETY: as the caller's.
    unsafe { CStr::from_ptr(c) }.to_string_lossy().into_owned()
}

/// A client of a cluster, by itself not connected to it.
pub(super) struct Cluster {
    lib: &'static Functions,
    handle: Handle,
}

impl Cluster {
    /// A client of this user, without `client.`, with the settings of a file: by default the one that Ceph's tools find.
    pub(super) fn new(id: Option<&str>, conf: Option<&Path>) -> io::Result<Self> {
        let lib = functions()?;
        let id = id.map(c_string).transpose()?;
        let mut handle = null_mut();
        // SAFETY: the id is null or a C string; the handle is written if there is no error.
        answered(unsafe {
            (lib.rados_create)(&raw mut handle, id.as_ref().map_or(null(), |id| id.as_ptr()))
        })?;
        let cluster = Self { lib, handle };
        let conf = conf.map(|path| c_string(&path.to_string_lossy())).transpose()?;
        // SAFETY: the handle is open; the path is null or a C string.
        answered(unsafe {
            (lib.rados_conf_read_file)(handle, conf.as_ref().map_or(null(), |conf| conf.as_ptr()))
        })?;
        Ok(cluster)
    }

    pub(super) fn set(&self, option: &str, value: &str) -> io::Result<()> {
        let (option, value) = (c_string(option)?, c_string(value)?);
        // SAFETY: the handle is open, and these are C strings.
        answered(unsafe { (self.lib.rados_conf_set)(self.handle, option.as_ptr(), value.as_ptr()) }).map(drop)
    }

    pub(super) fn connect(&self) -> io::Result<()> {
        // SAFETY: the handle is open.
        answered(unsafe { (self.lib.rados_connect)(self.handle) }).map(drop)
    }

    /// By what the cluster knows this client.
    pub(super) fn address(&self) -> io::Result<String> {
        let mut address = null_mut();
        // SAFETY: the handle is open and connected; the address is written if there is no error.
        answered(unsafe { (self.lib.rados_getaddrs)(self.handle, &raw mut address) })?;
        // SAFETY: it is a C string from malloc, which is the caller's.
        unsafe {
            let address_text = text(address);
            libc::free(address.cast());
            Ok(address_text)
        }
    }

    /// Makes the cluster refuse whatever comes from this address for so long. One that is refused already stays so until its time is over, which
    /// is not changed.
    pub(super) fn keep_out(&self, address: &str, seconds: u32) -> io::Result<()> {
        let address = c_string(address)?;
        // SAFETY: the handle is open and connected; the address is a C string, which is only read.
        answered(unsafe { (self.lib.rados_blocklist_add)(self.handle, address.as_ptr().cast_mut(), seconds) })
            .map(drop)
    }

    /// A pool, and a namespace there.
    pub(super) fn pool(&self, name: &str, namespace: Option<&str>) -> io::Result<Pool> {
        let (name, namespace) = (c_string(name)?, namespace.map(c_string).transpose()?);
        let mut handle = null_mut();
        // SAFETY: the client is open and connected, and the name is a C string.
        answered(unsafe { (self.lib.rados_ioctx_create)(self.handle, name.as_ptr(), &raw mut handle) })?;
        if let Some(namespace) = namespace {
            // SAFETY: the handle is open, and the name is a C string.
            unsafe { (self.lib.rados_ioctx_set_namespace)(handle, namespace.as_ptr()) };
        }
        // A pool that is full says so, and does not keep whoever writes waiting.
        // SAFETY: the handle is open.
        unsafe { (self.lib.rados_set_pool_full_try)(handle) };
        Ok(Pool { lib: self.lib, handle })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and what was opened through it is closed.
        unsafe { (self.lib.rados_shutdown)(self.handle) };
    }
}

/// A pool of a cluster. The cluster must outlive it.
pub(super) struct Pool {
    lib: &'static Functions,
    handle: Handle,
}

impl Pool {
    /// An attribute of an object; `None` if it has none.
    pub(super) fn attribute(&self, object: &str, name: &str) -> io::Result<Option<Vec<u8>>> {
        let (object, name) = (c_string(object)?, c_string(name)?);
        let mut bytes = vec![0_u8; NAME_BYTES_MAX];
        // SAFETY: the handle is open, these are C strings, and the buffer has the length that is told.
        let read = answered(unsafe {
            (self.lib.rados_getxattr)(
                self.handle,
                object.as_ptr(),
                name.as_ptr(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
            )
        });
        match read {
            Ok(len) => {
                bytes.truncate(len);
                Ok(Some(bytes))
            }
            Err(e) if e.raw_os_error() == Some(libc::ENODATA) => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) fn set_attribute(&self, object: &str, name: &str, value: &[u8]) -> io::Result<()> {
        let (object, name) = (c_string(object)?, c_string(name)?);
        let (lib, bytes, len) = (self.lib, value.as_ptr().cast(), value.len());
        // SAFETY: the handle is open, these are C strings, and the value has the length that is told.
        let set = unsafe { (lib.rados_setxattr)(self.handle, object.as_ptr(), name.as_ptr(), bytes, len) };
        answered(set).map(drop)
    }

    /// Makes an image that can be locked.
    pub(super) fn make_image(&self, name: &str, size_bytes: u64) -> io::Result<()> {
        let (name, features) = (c_string(name)?, FEATURE_LAYERING | FEATURE_EXCLUSIVE_LOCK);
        // Objects as large as the cluster makes them.
        let mut order = 0;
        let (lib, order) = (self.lib, &raw mut order);
        // SAFETY: the pool is open, and the name is a C string.
        answered(unsafe { (lib.rbd_create2)(self.handle, name.as_ptr(), size_bytes, features, order) })
            .map(drop)
    }

    /// Removes an image with all that it holds.
    pub(super) fn remove_image(&self, name: &str) -> io::Result<()> {
        let name = c_string(name)?;
        // SAFETY: the pool is open, and the name is a C string.
        answered(unsafe { (self.lib.rbd_remove)(self.handle, name.as_ptr()) }).map(drop)
    }

    /// An image of the pool.
    pub(super) fn image(&self, name: &str, read_only: bool) -> io::Result<Image> {
        let name = c_string(name)?;
        let open = if read_only { self.lib.rbd_open_read_only } else { self.lib.rbd_open };
        let mut handle = null_mut();
        // SAFETY: the pool is open, the name is a C string, and no snapshot is named; the handle is written if there is no error.
        answered(unsafe { open(self.handle, name.as_ptr(), &raw mut handle, null()) })?;
        Ok(Image { lib: self.lib, handle })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and what was opened through it is closed.
        unsafe { (self.lib.rados_ioctx_destroy)(self.handle) };
    }
}

/// How large an image is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) size_bytes: u64,
    /// So many consecutive bytes lie in objects of their own.
    pub(super) object_bytes: u64,
}

/// An open image. The pool must outlive it.
pub(super) struct Image {
    lib: &'static Functions,
    handle: Handle,
}

impl Image {
    pub(super) fn extent(&self) -> io::Result<Extent> {
        // SAFETY: the type has integers and arrays of integers alone.
        let mut info: ImageInfo = unsafe { std::mem::zeroed() };
        let mut stripes = 1;
        // SAFETY: the handle is open, and both are written as long as they are told to be.
        unsafe {
            answered((self.lib.rbd_stat)(self.handle, &raw mut info, size_of::<ImageInfo>()))?;
            answered((self.lib.rbd_get_stripe_count)(self.handle, &raw mut stripes))?;
        }
        Ok(Extent { size_bytes: info.size, object_bytes: info.object_size.saturating_mul(stripes.max(1)) })
    }

    pub(super) fn can_be_locked(&self) -> io::Result<bool> {
        let mut features = 0;
        // SAFETY: the handle is open.
        answered(unsafe { (self.lib.rbd_get_features)(self.handle, &raw mut features) })?;
        Ok(features & FEATURE_EXCLUSIVE_LOCK != 0)
    }

    /// What its objects are named after.
    pub(super) fn id(&self) -> io::Result<String> {
        let mut id = [0; NAME_BYTES_MAX];
        // SAFETY: the handle is open, and the buffer has the length that is told.
        answered(unsafe { (self.lib.rbd_get_id)(self.handle, id.as_mut_ptr(), id.len()) })?;
        // SAFETY: it is a C string now.
        Ok(unsafe { text(id.as_ptr()) })
    }

    /// Takes the exclusive lock, and keeps it when others ask for it.
    pub(super) fn lock(&self) -> io::Result<()> {
        // SAFETY: the handle is open.
        answered(unsafe { (self.lib.rbd_lock_acquire)(self.handle, LOCK_MODE_EXCLUSIVE) }).map(drop)
    }

    /// The address of the client that has the lock. It is asked so that an image can answer that is open for reading alone.
    pub(super) fn lock_owner(&self) -> io::Result<Option<String>> {
        let mut exclusive = 0;
        let mut texts = [[0; NAME_BYTES_MAX]; 4];
        let mut lens = [NAME_BYTES_MAX; 4];
        let [tag, clients, cookies, addresses] = &mut texts;
        let [tag_len, clients_len, cookies_len, addresses_len] = &mut lens;
        // SAFETY: the handle is open, and each buffer has the length that is told.
        let lockers = unsafe {
            (self.lib.rbd_list_lockers)(
                self.handle,
                &raw mut exclusive,
                tag.as_mut_ptr(),
                tag_len,
                clients.as_mut_ptr(),
                clients_len,
                cookies.as_mut_ptr(),
                cookies_len,
                addresses.as_mut_ptr(),
                addresses_len,
            )
        };
        match answered(c_int::try_from(lockers).unwrap_or(-libc::EIO))? {
            0 => Ok(None),
            // SAFETY: the addresses are C strings, one behind the other.
            _ => Ok(Some(unsafe { text(addresses.as_ptr()) })),
        }
    }

    /// Takes the lock away from this owner, and makes the cluster refuse whatever comes from there.
    pub(super) fn break_lock(&self, owner: &str) -> io::Result<()> {
        let owner = c_string(owner)?;
        // SAFETY: the handle is open, and the owner is a C string.
        answered(unsafe { (self.lib.rbd_lock_break)(self.handle, LOCK_MODE_EXCLUSIVE, owner.as_ptr()) })
            .map(drop)
    }

    /// Addresses of the clients that have the image open, and were heard of a short while ago.
    pub(super) fn watchers(&self) -> io::Result<Vec<String>> {
        let mut watchers = vec![Watcher { address: null_mut(), id: 0, cookie: 0 }; LIST_MAX];
        let mut count = watchers.len();
        // SAFETY: the handle is open, and the list has the length that is told.
        answered(unsafe {
            (self.lib.rbd_watchers_list)(self.handle, watchers.as_mut_ptr(), &raw mut count)
        })?;
        // SAFETY: so many watchers have C strings, which the library takes back.
        unsafe {
            let addresses = watchers[..count].iter().map(|watcher| text(watcher.address)).collect();
            (self.lib.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count);
            Ok(addresses)
        }
    }

    /// The settings that hold for this image, whoever made them.
    pub(super) fn settings(&self) -> io::Result<Vec<(String, String)>> {
        let mut settings = vec![Setting { name: null_mut(), value: null_mut(), source: 0 }; LIST_MAX];
        let mut count = LIST_MAX as c_int;
        // SAFETY: the handle is open, and the list has the length that is told.
        answered(unsafe {
            (self.lib.rbd_config_image_list)(self.handle, settings.as_mut_ptr(), &raw mut count)
        })?;
        let len = usize::try_from(count).unwrap_or_default();
        // SAFETY: so many settings have C strings, which the library takes back.
        unsafe {
            let all =
                settings[..len].iter().map(|setting| (text(setting.name), text(setting.value))).collect();
            (self.lib.rbd_config_image_list_cleanup)(settings.as_mut_ptr(), count);
            Ok(all)
        }
    }

    pub(super) fn read(&self, offset: u64, len: usize, ended: Ended) {
        let call = Call { read: Some(BufMut::zeroed(len)), ..Call::new(self.lib, ended) };
        self.start(call, |call, completion| {
            let into = call.read.as_mut().map_or(null_mut(), |buf| buf.as_mut_ptr().cast());
            // SAFETY: the image is open; the buffer has this length, and is the call's until its end.
            unsafe { (self.lib.rbd_aio_read)(self.handle, offset, len, into, completion) }
        });
    }

    pub(super) fn write(&self, offset: u64, bufs: Vec<Buf>, ended: Ended) {
        let part = |buf: &Buf| iovec { iov_base: buf.as_ptr().cast_mut().cast(), iov_len: buf.len() };
        let parts = bufs.iter().map(part).collect();
        let call = Call { _bufs: bufs, parts, ..Call::new(self.lib, ended) };
        self.start(call, |call, completion| {
            let (parts, count) = (call.parts.as_ptr(), call.parts.len() as c_int);
            // SAFETY: the image is open; the parts are of buffers that are the call's until its end, and are only read.
            unsafe { (self.lib.rbd_aio_writev)(self.handle, parts, count, offset, completion) }
        });
    }

    pub(super) fn zero(&self, offset: u64, len: u64, unmap: bool, ended: Ended) {
        let flags = if unmap { 0 } else { ZEROES_THICK };
        self.start(Call::new(self.lib, ended), |_, completion| {
            // SAFETY: the image is open.
            unsafe {
                (self.lib.rbd_aio_write_zeroes)(self.handle, offset, len as size_t, completion, flags, 0)
            }
        });
    }

    pub(super) fn flush(&self, ended: Ended) {
        self.start(Call::new(self.lib, ended), |_, completion| {
            // SAFETY: the image is open.
            unsafe { (self.lib.rbd_aio_flush)(self.handle, completion) }
        });
    }

    fn start(&self, call: Call, begin: impl FnOnce(&mut Call, Handle) -> c_int) {
        let call = Box::into_raw(Box::new(call));
        let mut completion = null_mut();
        // SAFETY: the call is the completion's from here on, and `end_of_call` takes it back.
        let made =
            unsafe { (self.lib.rbd_aio_create_completion)(call.cast(), end_of_call, &raw mut completion) };
        let begun = match made {
            // SAFETY: nobody else has the call before it has begun.
            0.. => begin(unsafe { &mut *call }, completion),
            made => made,
        };
        if begun < 0 {
            // SAFETY: a call that has not begun is told no end; it is still the one that was made above.
            let call = unsafe { Box::from_raw(call) };
            if made >= 0 {
                // SAFETY: the completion was made above, and is of no use any more.
                unsafe { (self.lib.rbd_aio_release)(completion) };
            }
            (call.ended)(Err(-begun));
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and no call is under way.
        unsafe { (self.lib.rbd_close)(self.handle) };
    }
}

/// What is to be done with the end of an operation, on a thread of the library: what was read, or an errno.
pub(super) type Ended = Box<dyn FnOnce(Result<Option<Buf>, i32>) + Send>;

/// An operation that the library works on.
struct Call {
    lib: &'static Functions,
    /// What it reads into.
    read: Option<BufMut>,
    /// What it writes, and where that lies.
    _bufs: Vec<Buf>,
    parts: Vec<iovec>,
    ended: Ended,
}

impl Call {
    fn new(lib: &'static Functions, ended: Ended) -> Self {
        Self { lib, read: None, _bufs: Vec::new(), parts: Vec::new(), ended }
    }
}

/// # Safety
/// Called by the library once for a completion, with the call that it was made with.
unsafe extern "C" fn end_of_call(completion: Handle, argument: *mut c_void) {
    // SAFETY: as the caller's.
    let call = unsafe { Box::from_raw(argument.cast::<Call>()) };
    let Call { lib, read, ended, .. } = *call;
    // SAFETY: the completion is the one of this call, whose end it tells.
    let answer = unsafe {
        let answer = (lib.rbd_aio_get_return_value)(completion);
        (lib.rbd_aio_release)(completion);
        answer
    };
    ended(match (answer, read) {
        (..0, _) => Err(i32::try_from(-answer).unwrap_or(libc::EIO)),
        (_, Some(read)) if answer.cast_unsigned() != read.len() => Err(libc::EIO),
        (_, read) => Ok(read.map(BufMut::freeze)),
    });
}
