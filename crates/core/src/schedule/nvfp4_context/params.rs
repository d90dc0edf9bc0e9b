//! Parameter blocks of the kernels.

use crate::params::{ParamField, ParamKind, ParamLayout};

/// Fields of the paged kernels' parameter block. Shapes: see `kernels/nvfp4_context/params.cuh`.
pub const PARAMS: ParamLayout = ParamLayout {
    fields: &[
        ParamField { name: "q", kind: ParamKind::TensorMap },
        ParamField { name: "k", kind: ParamKind::TensorMap },
        ParamField { name: "v", kind: ParamKind::TensorMap },
        ParamField { name: "k_scale", kind: ParamKind::TensorMap },
        ParamField { name: "v_scale", kind: ParamKind::TensorMap },
        ParamField { name: "page_table", kind: ParamKind::Pointer },
        ParamField { name: "seq_lens_kv", kind: ParamKind::Pointer },
        ParamField { name: "cu_seqlens_q", kind: ParamKind::Pointer },
        ParamField { name: "out", kind: ParamKind::Pointer },
        ParamField { name: "lse", kind: ParamKind::Pointer },
        ParamField { name: "sinks", kind: ParamKind::Pointer },
        ParamField { name: "bmm1_device", kind: ParamKind::Pointer },
        ParamField { name: "bmm2_device", kind: ParamKind::Pointer },
        ParamField { name: "partial_out", kind: ParamKind::Pointer },
        ParamField { name: "partial_max", kind: ParamKind::Pointer },
        ParamField { name: "partial_sum", kind: ParamKind::Pointer },
        ParamField { name: "completed", kind: ParamKind::Pointer },
        ParamField { name: "page_table_stride", kind: ParamKind::U64 },
        ParamField { name: "bmm1_scale", kind: ParamKind::F32 },
        ParamField { name: "bmm2_scale", kind: ParamKind::F32 },
        ParamField { name: "q_heads", kind: ParamKind::U32 },
        ParamField { name: "heads_per_kv", kind: ParamKind::U32 },
        ParamField { name: "units_per_request", kind: ParamKind::U32 },
        ParamField { name: "units", kind: ParamKind::U32 },
        ParamField { name: "m_blocks", kind: ParamKind::U32 },
        ParamField { name: "splits", kind: ParamKind::U32 },
        ParamField { name: "work_items", kind: ParamKind::U32 },
    ],
};

/// Fields of the decode kernel's parameter block. Shapes: see `kernels/nvfp4_context/decode_params.cuh`.
pub const DECODE_PARAMS: ParamLayout = ParamLayout {
    fields: &[
        ParamField { name: "q", kind: ParamKind::Pointer },
        ParamField { name: "k", kind: ParamKind::Pointer },
        ParamField { name: "v", kind: ParamKind::Pointer },
        ParamField { name: "k_scale", kind: ParamKind::Pointer },
        ParamField { name: "v_scale", kind: ParamKind::Pointer },
        ParamField { name: "page_table", kind: ParamKind::Pointer },
        ParamField { name: "seq_lens_kv", kind: ParamKind::Pointer },
        ParamField { name: "cu_seqlens_q", kind: ParamKind::Pointer },
        ParamField { name: "out", kind: ParamKind::Pointer },
        ParamField { name: "lse", kind: ParamKind::Pointer },
        ParamField { name: "sinks", kind: ParamKind::Pointer },
        ParamField { name: "bmm1_device", kind: ParamKind::Pointer },
        ParamField { name: "bmm2_device", kind: ParamKind::Pointer },
        ParamField { name: "partial_out", kind: ParamKind::Pointer },
        ParamField { name: "partial_max", kind: ParamKind::Pointer },
        ParamField { name: "partial_sum", kind: ParamKind::Pointer },
        ParamField { name: "completed", kind: ParamKind::Pointer },
        ParamField { name: "q_token_stride", kind: ParamKind::U64 },
        ParamField { name: "q_head_stride", kind: ParamKind::U64 },
        ParamField { name: "k_page_stride", kind: ParamKind::U64 },
        ParamField { name: "k_head_stride", kind: ParamKind::U64 },
        ParamField { name: "k_token_stride", kind: ParamKind::U64 },
        ParamField { name: "v_page_stride", kind: ParamKind::U64 },
        ParamField { name: "v_head_stride", kind: ParamKind::U64 },
        ParamField { name: "v_token_stride", kind: ParamKind::U64 },
        ParamField { name: "k_scale_page_stride", kind: ParamKind::U64 },
        ParamField { name: "k_scale_head_stride", kind: ParamKind::U64 },
        ParamField { name: "v_scale_page_stride", kind: ParamKind::U64 },
        ParamField { name: "v_scale_head_stride", kind: ParamKind::U64 },
        ParamField { name: "page_table_stride", kind: ParamKind::U64 },
        ParamField { name: "bmm1_scale", kind: ParamKind::F32 },
        ParamField { name: "bmm2_scale", kind: ParamKind::F32 },
        ParamField { name: "q_heads", kind: ParamKind::U32 },
        ParamField { name: "heads_per_kv", kind: ParamKind::U32 },
        ParamField { name: "kv_heads", kind: ParamKind::U32 },
        ParamField { name: "max_pages", kind: ParamKind::U32 },
        ParamField { name: "splits", kind: ParamKind::U32 },
    ],
};

/// Fields of the parameter block of attention over expanded tiles. Shapes: see
/// `kernels/nvfp4_context/expanded_params.cuh`.
pub const EXPANDED_PARAMS: ParamLayout = ParamLayout {
    fields: &[
        ParamField { name: "q", kind: ParamKind::TensorMap },
        ParamField { name: "expanded", kind: ParamKind::Pointer },
        ParamField { name: "seq_lens_kv", kind: ParamKind::Pointer },
        ParamField { name: "cu_seqlens_q", kind: ParamKind::Pointer },
        ParamField { name: "out", kind: ParamKind::Pointer },
        ParamField { name: "lse", kind: ParamKind::Pointer },
        ParamField { name: "sinks", kind: ParamKind::Pointer },
        ParamField { name: "bmm1_device", kind: ParamKind::Pointer },
        ParamField { name: "bmm2_device", kind: ParamKind::Pointer },
        ParamField { name: "partial_out", kind: ParamKind::Pointer },
        ParamField { name: "partial_max", kind: ParamKind::Pointer },
        ParamField { name: "partial_sum", kind: ParamKind::Pointer },
        ParamField { name: "bmm1_scale", kind: ParamKind::F32 },
        ParamField { name: "bmm2_scale", kind: ParamKind::F32 },
        ParamField { name: "q_heads", kind: ParamKind::U32 },
        ParamField { name: "heads_per_kv", kind: ParamKind::U32 },
        ParamField { name: "key_blocks", kind: ParamKind::U32 },
        ParamField { name: "units_per_request", kind: ParamKind::U32 },
        ParamField { name: "units", kind: ParamKind::U32 },
        ParamField { name: "m_blocks", kind: ParamKind::U32 },
        ParamField { name: "splits", kind: ParamKind::U32 },
        ParamField { name: "work_items", kind: ParamKind::U32 },
    ],
};

/// Fields of the parameter block of the kernel that expands tiles. Shapes: see
/// `kernels/nvfp4_context/dequantise_params.cuh`.
pub const DEQUANTISE_PARAMS: ParamLayout = ParamLayout {
    fields: &[
        ParamField { name: "k", kind: ParamKind::TensorMap },
        ParamField { name: "v", kind: ParamKind::TensorMap },
        ParamField { name: "k_scale", kind: ParamKind::TensorMap },
        ParamField { name: "v_scale", kind: ParamKind::TensorMap },
        ParamField { name: "page_table", kind: ParamKind::Pointer },
        ParamField { name: "seq_lens_kv", kind: ParamKind::Pointer },
        ParamField { name: "cu_seqlens_q", kind: ParamKind::Pointer },
        ParamField { name: "expanded", kind: ParamKind::Pointer },
        ParamField { name: "page_table_stride", kind: ParamKind::U64 },
        ParamField { name: "kv_heads", kind: ParamKind::U32 },
        ParamField { name: "key_blocks", kind: ParamKind::U32 },
    ],
};

/// Fields of the parameter block of the merge of split tiles. Shapes: see `kernels/nvfp4_context/merge_params.cuh`.
pub const MERGE_PARAMS: ParamLayout = ParamLayout {
    fields: &[
        ParamField { name: "cu_seqlens_q", kind: ParamKind::Pointer },
        ParamField { name: "partial_out", kind: ParamKind::Pointer },
        ParamField { name: "partial_max", kind: ParamKind::Pointer },
        ParamField { name: "partial_sum", kind: ParamKind::Pointer },
        ParamField { name: "out", kind: ParamKind::Pointer },
        ParamField { name: "lse", kind: ParamKind::Pointer },
        ParamField { name: "sinks", kind: ParamKind::Pointer },
        ParamField { name: "bmm1_device", kind: ParamKind::Pointer },
        ParamField { name: "bmm2_device", kind: ParamKind::Pointer },
        ParamField { name: "bmm1_scale", kind: ParamKind::F32 },
        ParamField { name: "bmm2_scale", kind: ParamKind::F32 },
        ParamField { name: "batch", kind: ParamKind::U32 },
        ParamField { name: "q_heads", kind: ParamKind::U32 },
        ParamField { name: "splits", kind: ParamKind::U32 },
    ],
};
