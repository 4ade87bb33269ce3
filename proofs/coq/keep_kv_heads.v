(* KeepKV's joint merges (proofs/keep_kv.md): one key and one value for several query heads. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
From kvbound Require Import seminorm combination inner_product exponential divergence keep_kv_later keep_kv.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

(* The smallest vector with given inner products with independent ones is a combination of these. *)
Lemma smallest_solution (R : realFieldType) (K : lmodType R) (dot : inner_product K) (n : nat) (q : 'I_n -> K)
    (b : 'I_n -> R) :
  (forall x, dot x x = 0 -> x = 0) -> (forall c, \sum_h c h *: q h = 0 -> forall h, c h = 0) ->
  exists2 a, forall h, dot (q h) (\sum_k a k *: q k) = b h &
    forall y, (forall h, dot (q h) y = b h) ->
      let x := \sum_k a k *: q k in dot y y = dot x x + dot (y - x) (y - x).
Proof.
move=> definite independent; pose G := \matrix_(i, j) dot (q i) (q j) : 'M[R]_n.
have in_G (u : 'rV_n) j : (u *m G) 0 j = dot (\sum_i u 0 i *: q i) (q j).
  by rewrite mxE dot_suml; apply: eq_bigr => i _; rewrite mxE dot_scalel.
have G_unit : G \in unitmx.
  rewrite unitmxE unitfE; apply/negP => /det0P[u u0 uG].
  have zero : \sum_i u 0 i *: q i = 0.
    apply: definite; rewrite dot_sumr big1 // => j _; rewrite dot_scaler -in_G uG mxE mulr0 //.
  by move/eqP: u0; apply; apply/rowP => i; rewrite mxE; exact: independent (fun i => u 0 i) zero i.
have [a a_by] : exists a : 'rV_n, forall j, (a *m G) 0 j = b j.
  by exists ((\row_j b j) *m invmx G) => j; rewrite mulmxKV // mxE.
have at_b h : dot (q h) (\sum_k a 0 k *: q k) = b h by rewrite dot_sym -in_G a_by.
exists (fun h => a 0 h) => // y y_by x; have right : dot x (y - x) = 0.
  by rewrite {1}/x dot_suml big1 // => h _; rewrite dot_scalel dot_addr dot_oppr y_by at_b subrr mulr0.
rewrite -{1 2}[y](subrK x); move: (y - x) right => g right.
by rewrite dot_addl !dot_addr [dot g x]dot_sym right; ring.
Qed.

(* kkv-gqa: Let query heads share a cache, and let one cluster merge. If their queries are linearly independent, there
   is a smallest correction of the mean of the heads' mean keys that gives every head its own logit; with one head the
   key is that of kkv-3-prime. Given these logits, each head's output changes by W/D times the distance of the value
   from the head's own mean value, and of all values the mean of these by c = (W/D)^2 has the smallest sum of squared
   changes: another adds the sum of c times its squared distance. *)
Theorem kkv_gqa (R : realFieldType) (e : exponential R) (ln : logarithm e) (K E : lmodType R) (dot : inner_product K)
    (dotE : inner_product E) (n : nat) (q : 'I_n -> K) (I clusters : finType) (cluster : I -> option clusters)
    (r : clusters) (votes : I -> R) (keys : I -> K) (v : I -> E) :
  let logit h i := dot (q h) (keys i) in
  let w h i := votes i * e (logit h i) in
  let D h := \sum_i w h i in
  let W h := \sum_(i | cluster i == Some r) w h i in
  let KL h := divergence ln (members cluster r) votes (logit h) in
  let mean_key h := mean e (members cluster r) votes (logit h) keys in
  let own_value h := merged_value cluster (w h) v r in
  let own_logit h key := dot (q h) key = dot (q h) (mean_key h) - KL h in
  let start := n%:R^-1 *: \sum_h mean_key h in
  let merged h key (_ : clusters) := total_votes (members cluster r) votes * e (dot (q h) key) in
  let o h := true_output (w h) v in
  let after h key value := (merged_total cluster (w h) (merged h key))^-1 *:
    (\sum_(i | cluster i == None) w h i *: v i + \sum_s merged h key s *: value) in
  let c h := (W h / D h) ^+ 2 in
  let best := (\sum_h c h)^-1 *: \sum_h c h *: own_value h in
  let square x := dotE x x in
  (0 < n)%N -> (forall i, 0 < votes i) -> (exists i, cluster i = Some r) -> (forall s, s = r) ->
  [/\ (forall x, dot x x = 0 -> x = 0) -> (forall a, \sum_h a h *: q h = 0 -> forall h, a h = 0) ->
      exists x, [/\ forall h, own_logit h (start + x),
        forall y, (forall h, own_logit h (start + y)) -> dot x x <= dot y y /\ (dot y y = dot x x -> y = x) &
        forall h, (forall k, k = h) -> start + x = mean_key h - (KL h / dot (q h) (q h)) *: q h],
      forall key value, (forall h, own_logit h key) -> forall h,
        after h key value - o h = (W h / D h) *: (value - own_value h),
      forall key value, (forall h, own_logit h key) ->
        \sum_h square (after h key value - o h) = \sum_h c h * square (value - own_value h) &
      forall value, \sum_h c h * square (value - own_value h) =
        \sum_h c h * square (best - own_value h) + (\sum_h c h) * square (value - best)].
Proof.
move=> logit w D W KL mean_key own_value own_logit start merged o after c best square n_gt0 votes_gt0 some one.
have members_gt0 i : i \in members cluster r -> 0 < votes i by [].
have some_r s : exists i, cluster i = Some s by rewrite (one s).
have w_gt0 h i : 0 < w h i by rewrite mulr_gt0 ?exp_gt0.
have [i0 i0_r] := some.
have W_gt0 h : 0 < W h.
  by rewrite /W (bigD1 i0) ?i0_r //= ltr_spaddl //; apply: sumr_ge0 => i _; exact: ltW.
have D_gt0 h : 0 < D h by rewrite /D (bigD1 i0) //= ltr_spaddl //; apply: sumr_ge0 => i _; exact: ltW.
have change key value : (forall h, own_logit h key) -> forall h,
    after h key value - o h = (W h / D h) *: (value - own_value h).
  move=> own h; have merged_W s : merged h key s = W h.
    rewrite /merged -/(w h); apply: (weight_kept (ln := ln) votes_gt0 some_r (log_score := logit h) (shift := 0)).
      by move=> i _; rewrite addr0.
    rewrite addr0 own /KL divergence_by ?(members_some some_r) //.
    by rewrite logit_of_mean opprB addrC subrK.
  have merged_gt0 s : 0 < merged h key s by rewrite merged_W.
  have := @replaced_cluster _ _ _ _ cluster (w h) v (merged h key) (fun=> value) r (w_gt0 h) merged_gt0 one.
  rewrite /= -/(after h key value) -/(o h) => ->; rewrite merged_W -/(W h) -/(own_value h).
  have -> : merged_total cluster (w h) (merged h key) = D h.
    rewrite /merged_total /D (sum_by_members cluster) sum_of_members; congr (_ + _).
    by apply: eq_bigr => s _; rewrite merged_W (one s).
  by move: (o h) => x; linear; ring.
split=> //.
- move=> definite independent.
  pose b h := dot (q h) (mean_key h) - KL h - dot (q h) start.
  have [a at_b smallest] := smallest_solution b definite independent.
  set x := \sum_k a k *: q k in at_b smallest; exists x; split=> [h | y own | h only].
  + by rewrite /own_logit dot_addr at_b /b addrC subrK.
  + have := smallest y; rewrite /= => -> => [|h]; last by rewrite /b -own dot_addr addrAC subrr add0r.
    rewrite ler_addl dot_ge0; split=> // /eqP; rewrite -[X in _ == X]addr0 (inj_eq (addrI _)) => /eqP/definite/eqP.
    by rewrite subr_eq0 => /eqP.
  have sums (M : zmodType) (f : 'I_n -> M) : \sum_k f k = f h by apply: (big_pred1 h) => k; apply/esym/eqP.
  have n1 : n = 1%N by rewrite -(card_ord n); apply: (@eq_card1 _ h) => k; apply/esym/eqP; exact: only.
  have start_by : start = mean_key h by rewrite /start sums n1 invr1 scale1r.
  have q_neq0 : dot (q h) (q h) != 0.
    apply/eqP => /definite q0; have := independent (fun=> 1); rewrite sums q0 scaler0 => /(_ erefl h)/eqP.
    by rewrite oner_eq0.
  rewrite start_by -scaleNr /x sums; congr (_ + _ *: _); apply: (mulIf q_neq0).
  by have := at_b h; rewrite /x sums dot_scaler => ->; rewrite /b start_by addrAC subrr add0r mulNr divfK.
- move=> key value own; apply: eq_bigr => h _; rewrite change // /square dot_scalel dot_scaler /c; ring.
move=> value; have c_gt0 : 0 < \sum_h c h.
  rewrite (bigD1 (Ordinal n_gt0)) //= ltr_spaddl ?exprn_gt0 ?divr_gt0 //.
  by apply: sumr_ge0 => h _; exact: sqr_ge0.
have balanced : \sum_h c h *: (best - own_value h) = 0.
  rewrite (eq_bigr (fun h => c h *: best - c h *: own_value h)) => [|h _]; last exact: scalerBr.
  by rewrite sumrB -scaler_suml /best scalerA mulfV ?gt_eqF // scale1r subrr.
have expand h : c h * square (value - own_value h) = c h * square (best - own_value h) +
    c h * square (value - best) + 2%:R * dotE (value - best) (c h *: (best - own_value h)).
  rewrite -[value](subrK best) -[value - best + best - _]addrA; move: (_ - own_value h) => y.
  rewrite addrK; move: (value - best) => x.
  by rewrite /square dot_addl !dot_addr dot_scaler [dotE y x]dot_sym; ring.
rewrite (eq_bigr _ (fun h _ => expand h)) !big_split /= -mulr_suml -mulr_sumr -dot_sumr balanced.
by rewrite dot_zeror mulr0 addr0.
Qed.
