(* KeepKV's bounds for later queries (proofs/keep_kv.md): what merging by predicted scores does to the output of a
   query whose true scores differ from them by at most a share eps. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
From kvbound Require Import seminorm.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

Section LaterQueries.
Variables (R : realFieldType) (E : lmodType R) (N : seminorm E).
Variables (I clusters : finType) (cluster : I -> option clusters).
(* Attention before normalisation: votes times true scores, and votes times predicted ones of members. *)
Variables (w predicted : I -> R) (v : I -> E).
(* Of each merged entry, which has all votes of its cluster. *)
Variable merged : clusters -> R.
Variables (eps gamma : R).

Definition is_member i := cluster i != None.
Definition predicted_merged r := \sum_(i | cluster i == Some r) predicted i.

Hypothesis w_gt0 : forall i, 0 < w i.
Hypothesis merged_gt0 : forall r, 0 < merged r.
Hypothesis eps_ge0 : 0 <= eps.
Hypothesis eps_lt1 : eps < 1.
Hypothesis members_near : forall i, is_member i ->
  (1 - eps) * w i <= predicted i /\ predicted i <= (1 + eps) * w i.
Hypothesis merged_near : forall r,
  (1 - eps) * merged r <= predicted_merged r /\ predicted_merged r <= (1 + eps) * merged r.
Hypothesis values_near : forall i j, is_member j -> N (v j - v i) <= gamma.

(* The weight by which a value enters after the merge: a member's share of its merged entry's. *)
Definition weight i :=
  if cluster i is Some r then merged r * (predicted i / predicted_merged r) else w i.
Definition true_output := (\sum_i w i)^-1 *: \sum_i w i *: v i.
Definition merged_value r :=
  (predicted_merged r)^-1 *: \sum_(i | cluster i == Some r) predicted i *: v i.
Definition merged_total := \sum_(i | cluster i == None) w i + \sum_r merged r.
Definition merged_output :=
  merged_total^-1 *:
    (\sum_(i | cluster i == None) w i *: v i + \sum_r merged r *: merged_value r).
Definition merged_attention := (\sum_r merged r) / merged_total.

Let low_gt0 : 0 < 1 - eps. Proof. by rewrite subr_gt0. Qed.
Let high_gt0 : 0 < 1 + eps. Proof. exact: (ltr_paddr eps_ge0 ltr01). Qed.

Lemma predicted_merged_gt0 r : 0 < predicted_merged r.
Proof. by apply: lt_le_trans (proj1 (merged_near r)); rewrite mulr_gt0. Qed.

Lemma sum_of_members (M : zmodType) (f : I -> M) :
  \sum_(i | is_member i) f i = \sum_r \sum_(i | cluster i == Some r) f i.
Proof.
under [RHS]eq_bigr do rewrite big_mkcond.
rewrite exchange_big [LHS]big_mkcond /=; apply: eq_bigr => i _; rewrite /is_member -big_mkcond /=.
case: (cluster i) => [r|] /=; last by rewrite big_pred0.
by rewrite (big_pred1 r) // => s; rewrite eq_sym.
Qed.

Lemma sum_by_members (M : zmodType) (f : I -> M) :
  \sum_i f i = \sum_(i | cluster i == None) f i + \sum_(i | is_member i) f i.
Proof. exact: (bigID (fun i => cluster i == None)). Qed.

Lemma weight_of_member i r : cluster i = Some r -> weight i = merged r * (predicted i / predicted_merged r).
Proof. by move=> i_r; rewrite /weight i_r. Qed.

Lemma weight_of_other i : cluster i == None -> weight i = w i.
Proof. by move=> /eqP i_none; rewrite /weight i_none. Qed.

Lemma sum_of_weights r : 0 < predicted_merged r -> \sum_(i | cluster i == Some r) weight i = merged r.
Proof.
move=> pm_gt0; transitivity (merged r * (\sum_(i | cluster i == Some r) predicted i / predicted_merged r)).
  by rewrite mulr_sumr; apply: eq_bigr => i /eqP i_r; rewrite (@weight_of_member i r).
by rewrite -mulr_suml -/(predicted_merged r) divff ?mulr1 // gt_eqF.
Qed.

Lemma total_by_weights : (forall r, 0 < predicted_merged r) -> merged_total = \sum_i weight i.
Proof.
move=> pm_gt0; rewrite sum_by_members sum_of_members /merged_total; congr (_ + _).
  by apply: eq_bigr => i i_none; rewrite weight_of_other.
by apply: eq_bigr => r _; rewrite sum_of_weights.
Qed.

Lemma output_by_weights : merged_output = merged_total^-1 *: \sum_i weight i *: v i.
Proof.
rewrite sum_by_members sum_of_members /merged_output; congr (_ *: (_ + _)).
  by apply: eq_bigr => i i_none; rewrite weight_of_other.
apply: eq_bigr => r _; rewrite /merged_value scalerA scaler_sumr; apply: eq_bigr => i /eqP i_r.
by rewrite scalerA (@weight_of_member i r) //; congr (_ *: _); rewrite mulrAC mulrA.
Qed.

Let merged_ge0 : 0 <= \sum_r merged r.
Proof. by apply: sumr_ge0 => r _; exact: ltW. Qed.

Let others_ge0 : 0 <= \sum_(i | cluster i == None) w i.
Proof. by apply: sumr_ge0 => i _; exact: ltW. Qed.

Lemma weight_gt0 i :
  (forall r, 0 < predicted_merged r) -> (forall j, is_member j -> 0 < predicted j) -> 0 < weight i.
Proof.
move=> pm_gt0 predicted_gt0; rewrite /weight; case i_r: (cluster i) => [r|] //.
by rewrite mulr_gt0 ?divr_gt0 // predicted_gt0 // /is_member i_r.
Qed.

Lemma member_gt0 i : is_member i -> 0 < predicted i.
Proof. by move=> /members_near[low _]; apply: lt_le_trans low; rewrite mulr_gt0. Qed.

Let own_weight_gt0 i : 0 < weight i.
Proof. exact: (weight_gt0 _ predicted_merged_gt0 member_gt0). Qed.

(* Where nothing merges, the weights are the true ones and there is nothing to bound. *)
Let merged_total_gt0 : (exists i : I, true) -> 0 < merged_total.
Proof.
move=> [i _]; rewrite (total_by_weights predicted_merged_gt0) (bigD1 i) //= ltr_spaddl ?own_weight_gt0 //.
by apply: sumr_ge0 => j _; rewrite ltW.
Qed.

Lemma weight_near i : is_member i ->
  (1 - eps) / (1 + eps) * w i <= weight i /\ weight i <= (1 + eps) / (1 - eps) * w i.
Proof.
rewrite /is_member; case i_r: (cluster i) => [r|] // _; rewrite (@weight_of_member i r) // mulrA.
have [low high] := members_near (i := i) ltac:(by rewrite /is_member i_r).
have [merged_low merged_high] := merged_near r.
have pm_gt0 := predicted_merged_gt0 r; have w_i := w_gt0 i.
have predicted_ge0 : 0 <= predicted i by apply: le_trans low; rewrite mulr_ge0 ?ltW.
split.
  rewrite ler_pdivl_mulr //.
  have -> : (1 - eps) / (1 + eps) * w i * predicted_merged r =
      predicted_merged r / (1 + eps) * ((1 - eps) * w i) by field; rewrite gt_eqF.
  apply: ler_pmul => //; [by rewrite divr_ge0 ?ltW | by rewrite mulr_ge0 ?ltW |].
  by rewrite ler_pdivr_mulr // mulrC.
rewrite ler_pdivr_mulr //.
have -> : (1 + eps) / (1 - eps) * w i * predicted_merged r =
    predicted_merged r / (1 - eps) * ((1 + eps) * w i) by field; rewrite gt_eqF.
by apply: ler_pmul => //; [exact: ltW | rewrite ler_pdivl_mulr // mulrC].
Qed.

Let change i : is_member i -> `|weight i - w i| <= 2%:R * eps / (1 - eps) * w i.
Proof.
move=> i_in; have [at_least at_most] := weight_near i_in; have w_i := w_gt0 i.
rewrite ler_norml; apply/andP; split; last first.
  rewrite ler_subl_addr; apply: le_trans at_most _.
  by rewrite le_eqVlt; apply/orP; left; apply/eqP; field; rewrite gt_eqF.
rewrite ler_subr_addl; apply: le_trans at_least.
have -> : w i + - (2%:R * eps / (1 - eps) * w i) = (1 - 2%:R * eps / (1 - eps)) * w i by ring.
apply: ler_wpmul2r; first exact: ltW.
have -> : (1 - eps) / (1 + eps) = 1 - 2%:R * eps / (1 + eps) by field; rewrite gt_eqF.
rewrite ler_add2l ler_opp2; apply: ler_wpmul2l; first by rewrite mulr_ge0 ?ler0n.
by rewrite lef_pinv ?posrE // ler_add2l; apply: le_trans eps_ge0; rewrite oppr_le0.
Qed.

Let members_at_most : \sum_(i | is_member i) w i <= (1 + eps) / (1 - eps) * \sum_r merged r.
Proof.
rewrite mulrAC ler_pdivl_mulr // mulr_sumr.
apply: (@le_trans _ _ (\sum_r predicted_merged r)); last first.
  by apply: ler_sum => r _; exact: (proj2 (merged_near r)).
rewrite -sum_of_members mulr_suml; apply: ler_sum => i i_in; rewrite mulrC.
exact: (proj1 (members_near i_in)).
Qed.

Let distance_from_output i : (exists i : I, true) -> is_member i -> N (v i - true_output) <= gamma.
Proof.
move=> [i0 _] i_in; have total_gt0 : 0 < \sum_j w j.
  by rewrite (bigD1 i0) //= ltr_spaddl //; apply: sumr_ge0 => j _; exact: ltW.
have -> : v i - true_output = (\sum_j w j)^-1 *: \sum_j w j *: (v i - v j).
  have -> : \sum_j w j *: (v i - v j) = (\sum_j w j) *: v i - \sum_j w j *: v j.
    by rewrite scaler_suml -sumrB; apply: eq_bigr => j _; rewrite scalerBr.
  by rewrite scalerBr scalerA mulVf ?scale1r // gt_eqF.
rewrite norm_scale ger0_norm; last by rewrite invr_ge0 ltW.
rewrite ler_pdivr_mull //; apply: le_trans (norm_combination _ _ _ _) _.
rewrite mulr_suml; apply: ler_sum => j _; rewrite ger0_norm; last exact: ltW.
by apply: ler_wpmul2l; [exact: ltW | exact: values_near].
Qed.

Let moved : (exists i : I, true) ->
  merged_total *: (merged_output - true_output) =
  \sum_(i | is_member i) (weight i - w i) *: (v i - true_output).
Proof.
move=> some; have total_gt0 := merged_total_gt0 some.
have w_total_gt0 : 0 < \sum_j w j.
  by have [i0 _] := some; rewrite (bigD1 i0) //= ltr_spaddl //; apply: sumr_ge0 => j _; exact: ltW.
transitivity (\sum_i (weight i - w i) *: (v i - true_output)); last first.
  rewrite sum_by_members [X in X + _]big1 ?add0r // => i i_none.
  by rewrite weight_of_other // subrr scale0r.
have -> : \sum_i (weight i - w i) *: (v i - true_output) =
    (\sum_i weight i *: v i - \sum_i w i *: v i) - (\sum_i weight i - \sum_i w i) *: true_output.
  rewrite -!sumrB scaler_suml -sumrB; apply: eq_bigr => i _.
  by rewrite [LHS]scalerBr; congr (_ - _); exact: scalerBl.
rewrite scalerBr output_by_weights scalerA mulfV ?scale1r; last by rewrite gt_eqF.
have -> : \sum_i w i *: v i = (\sum_i w i) *: true_output.
  by rewrite /true_output scalerA mulfV ?scale1r // gt_eqF.
by rewrite (total_by_weights predicted_merged_gt0) scalerBl opprB addrA subrK.
Qed.

(* kkv-5-prime: One query head, disjoint clusters merged at one time, each into the mean of its values by predicted
   scores with all votes and any key, all other entries unchanged. If predicted and true scores of members and of
   merged entries differ by at most a share eps below 1, the output moves by at most 2 eps (1 + eps) gamma /
   (1 - eps)^2 times the attention on merged entries, where no member's value is farther than gamma from any. *)
Theorem kkv_5_prime :
  (exists i : I, true) ->
  N (merged_output - true_output) <= merged_attention * (2%:R * eps * (1 + eps) * gamma / (1 - eps) ^+ 2).
Proof.
move=> some; have total_gt0 := merged_total_gt0 some.
have -> : merged_output - true_output = merged_total^-1 *: (merged_total *: (merged_output - true_output)).
  by rewrite scalerA mulVf ?scale1r // gt_eqF.
rewrite norm_scale ger0_norm; last by rewrite invr_ge0 ltW.
rewrite moved // ler_pdivr_mull //; apply: le_trans (norm_combination _ _ _ _) _.
have factor_ge0 : 0 <= 2%:R * eps / (1 - eps) by rewrite divr_ge0 ?mulr_ge0 ?ler0n // ltW.
apply: (@le_trans _ _ (\sum_(i | is_member i) 2%:R * eps / (1 - eps) * w i * gamma)).
  by apply: ler_sum => i i_in; apply: ler_pmul; rewrite ?norm_ge0 ?change ?distance_from_output.
rewrite -mulr_suml -mulr_sumr.
have -> : merged_total * (merged_attention * (2%:R * eps * (1 + eps) * gamma / (1 - eps) ^+ 2)) =
    2%:R * eps / (1 - eps) * ((1 + eps) / (1 - eps) * \sum_r merged r) * gamma.
  by rewrite /merged_attention; field; rewrite !gt_eqF.
have [i i_in | none] := pickP is_member; last first.
  have -> : \sum_(i | is_member i) w i = 0 by apply: big_pred0 => i; exact: none.
  rewrite mulr0 mul0r.
  have no_cluster (r : clusters) : False.
    have := predicted_merged_gt0 r; rewrite /predicted_merged big_pred0 ?ltxx // => i.
    by have := none i; rewrite /is_member; case: (cluster i).
  by rewrite big1 ?mulr0 ?mul0r // => r; case: (no_cluster r).
have gamma_ge0 : 0 <= gamma by apply: le_trans (values_near i i_in); exact: norm_ge0.
by apply: ler_wpmul2r => //; apply: ler_wpmul2l.
Qed.

(* kkv-5: The same without the merged entries' attention, which is at most 1: for one cluster, and for any number of
   them, of which one has a member. *)
Theorem kkv_5 i :
  is_member i -> N (merged_output - true_output) <= 2%:R * eps * (1 + eps) * gamma / (1 - eps) ^+ 2.
Proof.
move=> i_in; have some : exists i : I, true by exists i.
have gamma_ge0 : 0 <= gamma by apply: le_trans (values_near i i_in); exact: norm_ge0.
apply: le_trans (kkv_5_prime some) _; apply: ler_pimull.
  by rewrite divr_ge0 ?exprn_ge0 ?mulr_ge0 ?ler0n // ltW.
rewrite ler_pdivr_mulr ?merged_total_gt0 // mul1r /merged_total ler_addr.
exact: others_ge0.
Qed.

(* kkv-5-joint: If merged entries have other values, such as one for several heads, the bound grows by the attention
   on each of them times the distance of its value from the mean by predicted scores. *)
Theorem kkv_5_joint (value : clusters -> E) :
  let joint := merged_total^-1 *: (\sum_(i | cluster i == None) w i *: v i + \sum_r merged r *: value r) in
  (exists i : I, true) ->
  N (joint - true_output) <=
    merged_attention * (2%:R * eps * (1 + eps) * gamma / (1 - eps) ^+ 2) +
    \sum_r merged r / merged_total * N (value r - merged_value r).
Proof.
move=> joint some; have total_gt0 := merged_total_gt0 some.
have -> : joint - true_output = (merged_output - true_output) + (joint - merged_output).
  by rewrite [RHS]addrC addrA subrK.
apply: le_trans (norm_add _ _ _) _; apply: ler_add; first exact: kkv_5_prime.
have -> : joint - merged_output = \sum_r (merged r / merged_total) *: (value r - merged_value r).
  rewrite /joint /merged_output -scalerBr opprD addrACA subrr add0r -sumrB scaler_sumr.
  by apply: eq_bigr => r _; rewrite -scalerBr scalerA mulrC.
apply: le_trans (norm_combination _ _ _ _) _; apply: ler_sum => r _.
by rewrite ger0_norm // divr_ge0 // ltW.
Qed.
End LaterQueries.

(* If the predicted scores of each cluster's members are the true ones times one number that is not 0, and the merged
   entry has the sum of their true weights, the output does not move. *)
Lemma proportional (R : realFieldType) (E : lmodType R) (I clusters : finType) (cluster : I -> option clusters)
    (w predicted : I -> R) (v : I -> E) (merged factor : clusters -> R) :
  (forall i, 0 < w i) -> (forall r, factor r != 0) ->
  (forall i r, cluster i = Some r -> predicted i = factor r * w i) ->
  (forall r, merged r = \sum_(i | cluster i == Some r) w i) ->
  merged_output cluster w predicted v merged = true_output w v.
Proof.
move=> w_gt0 factor0 predicted_by merged_by.
have pm_by r : predicted_merged cluster predicted r = factor r * merged r.
  rewrite /predicted_merged merged_by mulr_sumr; apply: eq_bigr => i /eqP i_r.
  exact: predicted_by.
rewrite /merged_output /merged_total /true_output.
rewrite (sum_by_members cluster w) (sum_by_members cluster (fun i => w i *: v i)) !sum_of_members.
congr (_^-1 *: _); first by congr (_ + _); apply: eq_bigr => r _; exact: merged_by.
congr (_ + _); apply: eq_bigr => r _; rewrite /merged_value scalerA pm_by scaler_sumr.
apply: eq_bigr => i /eqP i_r; rewrite scalerA (predicted_by _ _ i_r); congr (_ *: _).
have merged0 : merged r != 0.
  rewrite gt_eqF // merged_by (bigD1 i) ?i_r //= ltr_spaddl //.
  by apply: sumr_ge0 => j _; exact: ltW.
by field; rewrite factor0 merged0.
Qed.
