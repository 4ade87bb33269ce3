(* OBCache's scores that are limits (proofs/obcache.md): what shrinking an entry's key, or key and value, by a share t
   does to the output, and how far its square over t ^ 2 is from the score. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
From kvbound Require Import seminorm combination inner_product exponential critical_kv obcache logit_change.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

Section Shrunk.
Variables (R : realFieldType) (e : exponential R) (K E : lmodType R) (D : inner_product K) (N : seminorm E).
Variables (query : K) (I : finType) (keys : I -> K) (V : I -> E) (p : I).

Definition attention (k : I -> K) i := e (D query (k i)) / \sum_j e (D query (k j)).
Definition shrunk (M : lmodType R) (t : R) (f : I -> M) i := if i == p then (1 - t) *: f i else f i.

Notation A := (attention keys p).
Notation z := (D query (keys p)).
Notation o := (output (attention keys) V).
Definition key_score := A ^+ 2 * z ^+ 2 * N (V p - o) ^+ 2.
Definition joint_score := A ^+ 2 * N (V p + z *: (V p - o)) ^+ 2.
Definition key_change t := N (output (attention (shrunk t keys)) V - o) ^+ 2.
Definition joint_change t := N (output (attention (shrunk t keys)) (shrunk t V) - o) ^+ 2.

Let A_gt0 : 0 < A.
Proof.
rewrite divr_gt0 ?exp_gt0 // (bigD1 p) //= ltr_paddr ?exp_gt0 //.
by apply: sumr_ge0 => i _; rewrite ltW ?exp_gt0.
Qed.

Let A_le1 : A <= 1.
Proof.
rewrite /attention (bigD1 p) //= ler_pdivr_mulr ?mul1r ?ler_addl.
  by apply: sumr_ge0 => i _; rewrite ltW ?exp_gt0.
by rewrite ltr_paddr ?exp_gt0 //; apply: sumr_ge0 => i _; rewrite ltW ?exp_gt0.
Qed.

Lemma shrunk_output t (V' : I -> E) : (forall i, i != p -> V' i = V i) ->
  output (attention (shrunk t keys)) V' - o =
  - (A *: (lost e A (t * z) *: (V p - o) + left e A (t * z) *: (V p - V' p))).
Proof.
move=> others; have [grown_gt0 _ _ _] := factors e (t * z) (ltW A_gt0) A_le1.
have -> : output (attention (shrunk t keys)) V' - o =
    (A / grown e A (t * z)) *: (e (- (t * z)) *: (V' p - o) - (V p - o)).
  apply: (@replacement _ _ _ (fun i => e (D query (keys i))) (fun i => e (D query (shrunk t keys i)))).
  - by move=> i; exact: exp_gt0.
  - exact: exp_gt0.
  - by rewrite /shrunk eqxx -exp_add dot_scaler; congr (e _); ring.
  by move=> i i_p; rewrite /shrunk (negbTE i_p) others.
by rewrite /lost /left; set s := e _; linear; field; exact: lt0r_neq0.
Qed.

(* obc-key: For the key shrunk to (1 - t) k and h = t abs(z) > 0, E(t) / t^2 is between ((1 - e^-h) / h)^2 and
   ((e^h - 1) / h)^2 times the score A^2 z^2 N(v - o)^2; if h is at most 1/2, it is off by at most 11/8 h times the
   score. If z = 0, E(t) and the score are 0. *)
Theorem obc_key t :
  let h := `|t * z| in
  [/\ 0 < h -> ((1 - e (- h)) / h) ^+ 2 * key_score <= key_change t / t ^+ 2 <= ((e h - 1) / h) ^+ 2 * key_score,
      t != 0 -> h <= 2%:R^-1 -> `|key_change t / t ^+ 2 - key_score| <= 11%:R / 8%:R * h * key_score &
      z = 0 -> key_change t = 0 /\ key_score = 0].
Proof.
move=> h; have [_ /andP[low high] _ _] := factors e (t * z) (ltW A_gt0) A_le1.
have change_by : key_change t = lost e A (t * z) ^+ 2 * (A ^+ 2 * N (V p - o) ^+ 2).
  by rewrite /key_change shrunk_output // subrr scaler0 addr0 norm_opp !norm_square mulrCA.
have score_ge0 : 0 <= A ^+ 2 * N (V p - o) ^+ 2 by rewrite mulr_ge0 ?sqr_ge0.
have h_square : h ^+ 2 = t ^+ 2 * z ^+ 2 by rewrite real_normK ?num_real // exprMn.
split=> [h_gt0 | t0 h_le | z0]; last first.
- by rewrite change_by /lost /key_score z0 mulr0 oppr0 exp_zero subrr mul0r expr0n /= !(mul0r, mulr0).
- rewrite (_ : _ - _ = (lost e A (t * z) ^+ 2 - h ^+ 2) * (A ^+ 2 * N (V p - o) ^+ 2) / t ^+ 2); last first.
    by rewrite change_by h_square /key_score; field.
  rewrite normrM normfV (ger0_norm (sqr_ge0 t)) normrM (ger0_norm score_ge0).
  have [_ _ near] := small_factors e (ltW A_gt0) A_le1 h_le.
  rewrite ler_pdivr_mulr ?exprn_even_gt0 //.
  rewrite (_ : _ * t ^+ 2 = 11%:R / 8%:R * h ^+ 3 * (A ^+ 2 * N (V p - o) ^+ 2)); first exact: ler_wpmul2r.
  by rewrite (exprS h 2) h_square /key_score; ring.
have t0 : t != 0 by apply: contraTneq h_gt0 => t0; rewrite /h t0 mul0r normr0 ltxx.
have by_factor x : (x / h) ^+ 2 * key_score = x ^+ 2 * (A ^+ 2 * N (V p - o) ^+ 2) / t ^+ 2.
  have z0 : z != 0 by apply: contraTneq h_gt0 => z0; rewrite /h z0 mulr0 normr0 ltxx.
  by rewrite expr_div_n h_square /key_score; field; rewrite t0 z0.
have square : lost e A (t * z) ^+ 2 = `|lost e A (t * z)| ^+ 2 by rewrite real_normK ?num_real.
have less : 0 <= 1 - e (- h) by rewrite subr_ge0 -(exp_zero e) exp_le oppr_le0 ltW.
have t_ge0 : 0 <= (t ^+ 2)^-1 by rewrite invr_ge0 sqr_ge0.
have lost_ge0 := normr_ge0 (lost e A (t * z)).
rewrite !by_factor change_by square.
by apply/andP; split; apply: ler_wpmul2r => //; apply: ler_wpmul2r => //;
  rewrite ler_sqr ?nnegrE // (le_trans lost_ge0).
Qed.

(* obc-joint: For key and value shrunk to (1 - t) k and (1 - t) v, h = t abs(z) at most 1/2 and
   Q = A (3/5 abs(z) N(v - o) + 13/10 N(v)), E(t) / t^2 is off from the score A^2 N(v + z (v - o))^2 by at most
   h Q (2 sqrt(score) + Q / 2). Where the norm is of an inner product, the score is the value score, plus the key
   score, plus a cross term. *)
Theorem obc_joint t :
  let h := `|t * z| in
  let Q := A * (3%:R / 5%:R * `|z| * N (V p - o) + 13%:R / 10%:R * N (V p)) in
  let root := A * N (V p + z *: (V p - o)) in
  [/\ t != 0 -> h <= 2%:R^-1 -> `|joint_change t / t ^+ 2 - joint_score| <= h * Q * (2%:R * root + Q / 2%:R),
      0 <= root /\ root ^+ 2 = joint_score &
      forall dot : inner_product E, (forall x, N x ^+ 2 = dot x x) ->
        joint_score = A ^+ 2 * N (V p) ^+ 2 + key_score + 2%:R * A ^+ 2 * z * dot (V p) (V p - o)].
Proof.
move=> h Q root; split; last first.
- move=> dot norm_by; rewrite /joint_score /key_score !norm_by; move: (V p - o) => w.
  by rewrite !(dot_addl, dot_addr, dot_scalel, dot_scaler) (dot_sym dot w (V p)); ring.
- by rewrite mulr_ge0 ?norm_ge0 ?(ltW A_gt0) // /root /joint_score exprMn.
move=> t0 h_le; have [less near _] := small_factors e (ltW A_gt0) A_le1 h_le; rewrite -/h in less near.
have [_ _ lost_sign _] := factors e (t * z) (ltW A_gt0) A_le1.
set g := lost e A (t * z) in less lost_sign *; set m := left e A (t * z) in near.
pose u := A *: ((g / t) *: (V p - o) + m *: V p); pose limit := A *: (V p + z *: (V p - o)).
have change_by : joint_change t / t ^+ 2 = N u ^+ 2.
  rewrite /joint_change shrunk_output; last by move=> i i_p; rewrite /shrunk (negbTE i_p).
  rewrite -/g -/m (_ : - _ = - (t *: u)); last by rewrite /u /shrunk eqxx; linear; field.
  by rewrite norm_opp norm_square mulrC mulKf // expf_neq0.
have limit_by : N limit = root by rewrite norm_scale ger0_norm ?(ltW A_gt0).
have Q_ge0 : 0 <= Q.
  have [? ? ?] := And3 (ltW A_gt0) (norm_ge0 N (V p)) (norm_ge0 N (V p - o)); have := normr_ge0 z => ?.
  by rewrite /Q; nonnegative.
have apart : N (u - limit) <= h * Q.
  have -> : u - limit = A *: ((g / t - z) *: (V p - o) + (m - 1) *: V p) by rewrite /u /limit; linear; field.
  rewrite norm_scale ger0_norm ?(ltW A_gt0) // /Q mulrCA ler_wpmul2l ?(ltW A_gt0) //.
  apply: le_trans (norm_add _ _ _) _; rewrite !norm_scale mulrDr; apply: ler_add.
    rewrite mulrA ler_wpmul2r ?norm_ge0 //; have t_gt0 : 0 < `|t| by rewrite normr_gt0.
    rewrite (_ : g / t - z = (g - t * z) / t); last by field.
    rewrite normrM normfV lost_sign ler_pdivr_mulr //.
    by rewrite (_ : _ * `|t| = 3%:R / 5%:R * h ^+ 2) // /h !normrM; move: `|t| `|z| => a b; ring.
  by rewrite mulrA [h * _]mulrC ler_wpmul2r ?norm_ge0.
rewrite change_by -[joint_score](_ : root ^+ 2 = _); last by rewrite /root /joint_score exprMn.
rewrite -limit_by; set a := N u; set b := N limit.
have [a_ge0 b_ge0] : 0 <= a /\ 0 <= b by rewrite !norm_ge0.
have close : `|a - b| <= h * Q by apply: le_trans apart; exact: norm_sub.
have h_ge0 : 0 <= h := normr_ge0 _.
rewrite subr_sqr normrM; apply: ler_pmul => //; rewrite ger0_norm ?addr_ge0 //.
rewrite (_ : a + b = (a - b) + 2%:R * b); last by ring.
rewrite addrC ler_add2l; apply: le_trans (ler_norm _) _; apply: le_trans close _.
by rewrite mulrC ler_wpmul2l.
Qed.
End Shrunk.

(* obc-gqa: For queries and heads that share entry p, with outputs one below the other, so that their squared changes
   add up: these are the sums of the value scores if the value is zeroed, and of the exact scores if the entry is
   removed; for keys shrunk by t with t abs(z) at most 1/2 for all, E(t) / t^2 is off from the sum of the key scores by
   at most 11/8 times the sum of t abs(z) times the score. A hidden state that adds H heads changes by at most H times
   the sum. *)
Theorem obc_gqa (R : realFieldType) (e : exponential R) (K E : lmodType R) (D : inner_product K) (N : seminorm E)
    (J I : finType) (query : J -> K) (keys : J -> I -> K) (V : J -> I -> E) (p : I) (t : R) :
  let A j := attention e D (query j) (keys j) in
  let o j := output (A j) (V j) in
  let z j := D (query j) (keys j p) in
  let zeroed j i := if i == p then 0 else V j i in
  let rest j := without (A j) (V j) [set p] in
  let score j := key_score e D N (query j) (keys j) (V j) p in
  [/\ \sum_j N (output (A j) (zeroed j) - o j) ^+ 2 = \sum_j A j p ^+ 2 * N (V j p) ^+ 2,
      (forall j, A j p < 1) -> \sum_j N (rest j - o j) ^+ 2 = \sum_j A j p ^+ 2 * N (V j p - rest j) ^+ 2,
      t != 0 -> (forall j, `|t * z j| <= 2%:R^-1) ->
        `|(\sum_j key_change e D N (query j) (keys j) (V j) p t) / t ^+ 2 - \sum_j score j| <=
        11%:R / 8%:R * \sum_j `|t * z j| * score j &
      forall (heads queries : finType) (change : queries -> heads -> E),
        \sum_i N (\sum_h change i h) ^+ 2 <= #|heads|%:R * \sum_i \sum_h N (change i h) ^+ 2].
Proof.
move=> A o z zeroed rest score; split=> [|less|t0 small|]; last exact: layer_change.
- by apply: eq_bigr => j _; have [_ ->] := obc_value N (A j) (V j) p.
- apply: eq_bigr => j _; have A_ge0 i : 0 <= A j i.
    by rewrite divr_ge0 ?(ltW (exp_gt0 _ _)) //; apply: sumr_ge0 => k _; rewrite ltW ?exp_gt0.
  by have [_ -> _] := obc_exact N (V j) A_ge0 (less j); rewrite exprMn.
rewrite mulr_suml -sumrB mulr_sumr; apply: le_trans (ler_norm_sum _ _ _) _; apply: ler_sum => j _.
by have [_ near _] := obc_key e D N (query j) (keys j) (V j) p t; rewrite mulrA; apply: near (small j).
Qed.
