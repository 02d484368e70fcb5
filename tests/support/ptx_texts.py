"""Which PTX do the parser's tests write by hand?"""

HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"

HOPPER = (
    HEAD
    + r"""
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 .ptr .global .align 16 out, .param .u32 n)
.maxntid 384
.minnctapersm 1
.reqnctapercluster 2, 1, 1
.explicitcluster
{
  .reg .pred %p<4>; .reg .b32 %r<20>; .reg .b64 %rd<9>; .reg .f32 %f<8>; .reg .v2 .b32 pair;
  mov.u32 %r0, smem;
  elect.sync _|%p1, 0xffffffff;
  mbarrier.init.shared::cta.b64 [%r0+8], 1;
  fence.mbarrier_init.release.cluster;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0+8], 32768;
  mov.b64 %rd1, map;
  cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint
      [%r0], [%rd1, {%r2, %r3}], [%r0+8], %rd2;
  {
    .reg .pred P1;
    LAB_WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 P1, [%r0+8], %r4;
    @P1 bra DONE;
    bra LAB_WAIT;
    DONE:
  }
  {
    .reg .pred P1;
    LAB_WAIT: mbarrier.try_wait.parity.shared::cta.b64 P1, [%r0+16], %r4;
    @P1 bra DONE; bra LAB_WAIT; DONE:
  }
  wgmma.fence.sync.aligned;
  { .reg .pred p; setp.ne.b32 p, %r5, 0;
    wgmma.mma_async.sync.aligned.m64n8k16 .f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %rd3, %rd4, p, 1, -1, 0, 0; }
  wgmma.commit_group.sync.aligned;
  setmaxnreg.inc.sync.aligned.u32 240;
  setp.lt.and.f32 %p1|%p2, %f0, 0f3F800000, !%p3;
  shfl.sync.bfly.b32 %r6|%p1, %r7, 1, 0x1f, -1;
  mov.u32 pair.x, %tid.x;
  mov.b64 {%r1, _}, %rd1;
  ld.global.L1::no_allocate.L2::128B.v4.f32 {%f0, %f1, %f2, %f3}, [%rd1+-16];
  fma.rn.f32 %f0, %f1, 2.5e-1, %f2;
  add.s32 %r1, %r2, -017;
  and.b32 %r1, %r2, 0b1011U;
  add.u64 %rd1, %rd2, 18446744073709551615;
  mov.u32 %r1, (3 + 4 * 2) << 1;
  mov.u32 %r1, WARP_SZ;
  mov.u64 %rd1, %clock64; mov.u32 %r1, %lanemask_lt; mov.u32 %r2, %cluster_ctarank;
  st.shared::cluster.b32 [%r1], %r2;
  ld.shared.b32 %r1, [smem+16];
  ld.const.b32 %r1, [64];
  brx.idx %r1, TABLE;
  TABLE: .branchtargets A, B, A;
  A: trap;
  B: ret;
}
"""
)

CALLS = (
    HEAD
    + r"""
.func nothing;
.func (.param .b32 ret) twice (.param .b32 a, .param .align 8 .b8 s[24]);
.global .u32 numbers[] = {1, -2, 0xFFFFFFFF, 010};
.global .align 8 .u64 where[3] = {generic(numbers)+8, numbers+4, twice};
.global .u8 cut[3] = {0xff(numbers), 0xFF00(generic(numbers)), 0xff00(131187)};
.const .align 4 .f32 real[2][2] = {{0.5, 0f40000000}, {1}};
.visible .func (.param .b32 ret) twice (.param .b32 a, .param .align 8 .b8 s[24])
{
  .reg .b32 %r<3>;
  ld.param.b32 %r1, [a];
  add.s32 %r2, %r1, %r1;
  st.param.b32 [ret], %r2;
  ret;
}
.weak .entry main () .maxntid 32, 2 .pragma "nounroll";
{
  .reg .b32 %r<9>; .reg .b64 %rd<4>; .local .align 4 .b32 stack[8];
  .pragma "used_bytes_mask 1";
  mov.u64 %rd1, twice;
  {
    .param .b32 p0; .param .align 8 .b8 p1[24]; .param .b32 r;
    st.param.b32 [p0], 5;
    call.uni (r), twice, (p0, p1);
    ld.param.b32 %r1, [r];
  }
  { .param .b32 p0; .param .align 8 .b8 p1[24]; .param .b32 r;
    proto: .callprototype (.param .b32 _) _ (.param .b32 _, .param .align 8 .b8 _[24]);
    call (r), %rd1, (p0, p1), proto; }
  { .param .b32 p0; .param .align 8 .b8 p1[24]; .param .b32 r;
    list: .calltargets twice;
    call (r), %rd1, (p0, p1), list; }
  call nothing;
  exit;
}
"""
)

INLINED = (
    HEAD
    + r"""
.entry k() {
  .reg .b32 a;
  .loc 1 21 3
  .loc 1 9 3, function_name info_string0, inlined_at 1 21 3
  mov.b32 a, 1;
  .loc 1 27 3
  .loc 2 10 5, function_name info_string1, inlined_at 1 27 3
  .loc 1 15 3, function_name .debug_str+16, inlined_at 2 10 5
  mov.b32 a, 2;
}
.file 1 "/k.cu"
.file 2 "/inc/h.cuh", 1, 2
.section .debug_str {
info_string0:
.b8 95 // _
.b8 0
.b64 .debug_abbrev
}
"""
)
