//! Compares our UCP structures and constants with the installed header, by the C compiler.

use super::*;
use crate::layout::{Fact, check, constants, structure};

fn structures(facts: &mut Vec<Fact>) {
    structure!(facts, Status = "ucs_status_t" {});
    structure!(facts, Params = "ucp_params_t" {
        field_mask = "field_mask", features = "features", request_size = "request_size",
        request_init = "request_init", request_cleanup = "request_cleanup", tag_sender_mask = "tag_sender_mask",
        mt_workers_shared = "mt_workers_shared", estimated_num_eps = "estimated_num_eps",
        estimated_num_ppn = "estimated_num_ppn", name = "name",
    });
    structure!(facts, WorkerParams = "ucp_worker_params_t" {
        field_mask = "field_mask", thread_mode = "thread_mode", cpu_mask = "cpu_mask", events = "events",
        user_data = "user_data", event_fd = "event_fd", flags = "flags", name = "name",
        am_alignment = "am_alignment", client_id = "client_id",
    });
    structure!(facts, SockAddr = "ucs_sock_addr_t" { addr = "addr", addrlen = "addrlen" });
    structure!(facts, EpParams = "ucp_ep_params_t" {
        field_mask = "field_mask", address = "address", err_mode = "err_mode", err_handler_cb = "err_handler.cb",
        err_handler_arg = "err_handler.arg", user_data = "user_data", flags = "flags", sockaddr = "sockaddr",
        conn_request = "conn_request", name = "name", local_sockaddr = "local_sockaddr",
    });
    structure!(facts, AmHandlerParam = "ucp_am_handler_param_t" {
        field_mask = "field_mask", id = "id", flags = "flags", cb = "cb", arg = "arg",
    });
    structure!(facts, AmRecvParam = "ucp_am_recv_param_t" { recv_attr = "recv_attr", reply_ep = "reply_ep" });
    structure!(facts, RequestParam = "ucp_request_param_t" {
        op_attr_mask = "op_attr_mask", flags = "flags", request = "request", cb = "cb", datatype = "datatype",
        user_data = "user_data", reply_buffer = "reply_buffer", memory_type = "memory_type",
        recv_info = "recv_info", memh = "memh",
    });
}

fn values(facts: &mut Vec<Fact>) {
    constants!(facts: UCS_OK, UCS_INPROGRESS, UCS_ERR_UNREACHABLE, UCS_ERR_BUSY, UCS_ERR_TIMED_OUT, UCS_ERR_REJECTED,
        UCS_ERR_NOT_CONNECTED, UCS_ERR_CONNECTION_RESET, UCS_ERR_ENDPOINT_TIMEOUT, UCS_ERR_LAST,
        UCP_PARAM_FIELD_FEATURES, UCP_FEATURE_WAKEUP, UCP_FEATURE_AM, UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        UCP_WORKER_PARAM_FIELD_FLAGS, UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK, UCS_THREAD_MODE_SINGLE,
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE, UCP_EP_PARAM_FIELD_ERR_HANDLER,
        UCP_ERR_HANDLING_MODE_PEER, UCP_EP_CLOSE_FLAG_FORCE, UCP_OP_ATTR_FIELD_CALLBACK, UCP_OP_ATTR_FIELD_USER_DATA,
        UCP_OP_ATTR_FIELD_FLAGS, UCP_AM_SEND_FLAG_EAGER, UCP_AM_FLAG_WHOLE_MSG, UCP_AM_RECV_ATTR_FLAG_RNDV,
        UCP_AM_HANDLER_PARAM_FIELD_ID, UCP_AM_HANDLER_PARAM_FIELD_FLAGS, UCP_AM_HANDLER_PARAM_FIELD_CB,
        UCP_AM_HANDLER_PARAM_FIELD_ARG);
}

#[test]
fn layouts_equal_the_installed_header() {
    let mut facts = Vec::new();
    structures(&mut facts);
    values(&mut facts);
    check(&["ucp/api/ucp.h"], "libucx-dev", &facts);
    assert!(facts.len() > 60);
}
