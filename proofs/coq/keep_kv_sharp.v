(* Bounds for later queries (proofs/keep_kv.md): by the attention that merging moves, and the sharpest by eps and gamma
   alone, with instances that attain them. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
From kvbound Require Import seminorm combination critical_kv total_variation keep_kv_later.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

(* A later query whose scores are predicted within a share eps of the true ones, for members of clusters and for
   merged entries, and whose members' values are at most gamma away from every value. *)
Record near_prediction (R : realFieldType) (E : lmodType R) (N : seminorm E) (I clusters : finType)
    (cluster : I -> option clusters) (w predicted : I -> R) (v : I -> E) (merged : clusters -> R) (eps gamma : R) :
    Prop := NearPrediction {
  w_gt0 : forall i, 0 < w i;
  merged_gt0 : forall r, 0 < merged r;
  eps_within : 0 <= eps < 1;
  some_member : exists i, is_member cluster i;
  members_near : forall i, is_member cluster i ->
    (1 - eps) * w i <= predicted i /\ predicted i <= (1 + eps) * w i;
  merged_near : forall r, (1 - eps) * merged r <= predicted_merged cluster predicted r /\
    predicted_merged cluster predicted r <= (1 + eps) * merged r;
  values_near : forall i j, is_member cluster j -> N (v j - v i) <= gamma
}.

(* What moves the output is the attention that merging moves between entries, by whatever scores. *)
Section MovedAttention.
Variables (R : realFieldType) (E : lmodType R) (N : seminorm E) (I clusters : finType).
Variables (cluster : I -> option clusters) (w predicted : I -> R) (v : I -> E) (merged : clusters -> R) (gamma : R).
Hypothesis w_gt0 : forall i, 0 < w i.
Hypothesis merged_gt0 : forall r, 0 < merged r.
Hypothesis pm_gt0 : forall r, 0 < predicted_merged cluster predicted r.
Hypothesis member_gt0 : forall i, is_member cluster i -> 0 < predicted i.
Hypothesis some : exists i : I, true.
Hypothesis values_near : forall i j, is_member cluster j -> N (v j - v i) <= gamma.

Notation weight := (weight cluster w predicted merged).

Lemma moved_attention :
  N (merged_output cluster w predicted v merged - true_output w v) <= total_variation w weight * gamma.
Proof.
have weight_gt0 i : 0 < weight i by exact: weight_gt0.
rewrite output_by_weights (total_by_weights _ _ pm_gt0).
apply: (mean_change w_gt0 weight_gt0 some) => i j; rewrite /growth subr_gt0 subr_lt0 => grows shrinks.
have [i_in | i_out] := boolP (is_member cluster i); first exact: values_near.
have [j_in | j_out] := boolP (is_member cluster j).
  by rewrite -norm_opp opprB; exact: values_near.
rewrite negbK in i_out; rewrite negbK in j_out.
rewrite !weight_of_other // ltr_pmul2l // in grows.
by rewrite !weight_of_other // ltr_pmul2l // ltNge (ltW grows) in shrinks.
Qed.
End MovedAttention.

Section Bounds.
Variables (R : realFieldType) (E : lmodType R) (N : seminorm E) (I clusters : finType).
Variables (cluster : I -> option clusters) (w predicted : I -> R) (v : I -> E) (merged : clusters -> R).
Variables (eps gamma : R).
Hypothesis near : near_prediction N cluster w predicted v merged eps gamma.

Notation change := (N (merged_output cluster w predicted v merged - true_output w v)).
Notation weight := (weight cluster w predicted merged).
Notation moved := (total_variation w weight).

Let eps_ge0 : 0 <= eps. Proof. by have /andP[] := eps_within near. Qed.
Let eps_lt1 : eps < 1. Proof. by have /andP[] := eps_within near. Qed.
Let low_gt0 : 0 < 1 - eps. Proof. by rewrite subr_gt0. Qed.
Let high_gt0 : 0 < 1 + eps. Proof. exact: (ltr_paddr eps_ge0 ltr01). Qed.

Let some : exists i : I, true.
Proof. by have [i _] := some_member near; exists i. Qed.

Lemma gamma_ge0 : 0 <= gamma.
Proof. by have [i i_in] := some_member near; apply: le_trans (values_near near i i_in); exact: norm_ge0. Qed.

Let pm_gt0 r : 0 < predicted_merged cluster predicted r.
Proof. exact: (predicted_merged_gt0 (merged_gt0 near) eps_lt1 (merged_near near)). Qed.

Let weight_gt0 i : 0 < weight i.
Proof.
exact: (weight_gt0 (w_gt0 near) (merged_gt0 near) _ pm_gt0 (member_gt0 (w_gt0 near) eps_lt1 (members_near near))).
Qed.

Let moved_le (low root : R) : 0 < low -> 1 <= root ->
  (forall i, low * w i <= weight i <= root ^+ 2 * low * w i) -> moved <= (root - 1) / (root + 1).
Proof. by move=> low_gt0'; exact: (total_variation_le (w_gt0 near) weight_gt0 some low_gt0'). Qed.

Lemma change_by_moved : change <= moved * gamma.
Proof.
apply: (moved_attention (w_gt0 near) (merged_gt0 near) pm_gt0 _ some (values_near near)).
exact: (member_gt0 (w_gt0 near) eps_lt1 (members_near near)).
Qed.

Lemma many_clusters : moved <= eps.
Proof.
have -> : eps = ((1 + eps) / (1 - eps) - 1) / ((1 + eps) / (1 - eps) + 1).
  by field; rewrite gt_eqF //= (_ : _ + _ = 2%:R) ?pnatr_eq0 //; ring.
apply: (@moved_le ((1 - eps) / (1 + eps))); first by rewrite divr_gt0.
  by rewrite ler_pdivl_mulr // mul1r ler_add2l (le_trans _ eps_ge0) // oppr_le0.
move=> i; rewrite (_ : _ ^+ 2 * _ = (1 + eps) / (1 - eps)); last by field; rewrite !gt_eqF.
have [i_in | i_out] := boolP (is_member cluster i).
  apply/andP; apply: (weight_near (w_gt0 near) (merged_gt0 near) eps_ge0 eps_lt1) => //;
    [exact: members_near near | exact: merged_near near].
rewrite negbK in i_out; rewrite weight_of_other // ler_pimull ?ler_pemull ?(ltW (w_gt0 near i)) //.
  by rewrite ler_pdivl_mulr // mul1r ler_add2l (le_trans _ eps_ge0) // oppr_le0.
by rewrite ler_pdivr_mulr // mul1r ler_add2l (le_trans _ eps_ge0) // oppr_le0.
Qed.

Lemma one_cluster (root : R) : (forall r s : clusters, r = s) -> 0 <= root -> root ^+ 2 = 1 - eps ^+ 2 ->
  moved <= eps / (1 + root).
Proof.
move=> one root_ge0 root_by.
have square_gt0 : 0 < root ^+ 2 by rewrite root_by (_ : _ - _ = (1 - eps) * (1 + eps)) ?mulr_gt0 //; ring.
have root_gt0 : 0 < root by rewrite lt0r root_ge0 andbT; apply: contraTneq square_gt0 => ->; rewrite expr0n ltxx.
have more0 : 1 + root != 0 by rewrite gt_eqF // ltr_spaddl ?ltr01.
have -> : eps / (1 + root) = ((1 + eps) / root - 1) / ((1 + eps) / root + 1).
  apply/eqP; rewrite eqr_div //; last first.
    by rewrite gt_eqF // ltr_paddr ?ler01 // divr_gt0.
  apply/eqP/(mulIf (lt0r_neq0 root_gt0)).
  transitivity (eps * (1 + eps) + eps * root); first by field; exact: lt0r_neq0.
  transitivity (1 + eps + eps * root - root ^+ 2); last by field; exact: lt0r_neq0.
  by rewrite root_by; ring.
pose error := if [pick r : clusters] is Some r then predicted_merged cluster predicted r / merged r else 1.
have [error_low error_high] : 1 - eps <= error /\ error <= 1 + eps.
  rewrite /error; case: pickP => [r _ | _]; last by rewrite ler_subl_addr ler_addl eps_ge0.
  by have [? ?] := merged_near near r; rewrite ler_pdivl_mulr ?ler_pdivr_mulr // (merged_gt0 near).
have error_gt0 : 0 < error := lt_le_trans low_gt0 error_low.
apply: (@moved_le ((1 - eps) / error)); first by rewrite divr_gt0.
  rewrite ler_pdivl_mulr // mul1r -ler_sqr ?nnegrE ?(ltW high_gt0) // root_by -subr_ge0.
  by rewrite [X in _ <= X](_ : _ = 2%:R * eps * (1 + eps)); [have := ltW high_gt0 => ?; nonnegative | ring].
move=> i; have -> : ((1 + eps) / root) ^+ 2 * ((1 - eps) / error) = (1 + eps) / error.
  by rewrite expr_div_n root_by; field; rewrite gt_eqF //=; rewrite -root_by gt_eqF.
rewrite ![_ / error * _]mulrAC ler_pdivr_mulr // ler_pdivl_mulr //.
case i_r: (cluster i) => [r|].
  have [low high] := members_near near (i := i) ltac:(by rewrite /is_member i_r).
  rewrite (weight_of_member w predicted merged i_r) (_ : _ * error = predicted i) ?low //.
  rewrite /error; case: pickP => [s _ | /(_ r)//]; rewrite (one s r); field.
  by rewrite !gt_eqF // (merged_gt0 near).
rewrite weight_of_other ?i_r // mulrC ![_ * w i]mulrC.
by rewrite !ler_wpmul2l ?(ltW (w_gt0 near i)).
Qed.
End Bounds.

Definition absolute (R : realFieldType) : seminorm [lmodType R of R^o] :=
  @Seminorm R [lmodType R of R^o] (fun x => `|x|) (@ler_norm_add R R) (@normrM R).

(* Instances that attain them: four entries, of which the first two merge and have the value gamma, the others 0. *)
Section Attained.
Variables (R : realFieldType) (eps gamma root : R).
Hypotheses (eps_within : 0 <= eps < 1) (gamma_ge0 : 0 <= gamma).
Hypotheses (root_ge0 : 0 <= root) (root_by : root ^+ 2 = 1 - eps ^+ 2).

Let eps_ge0 : 0 <= eps. Proof. by have /andP[] := eps_within. Qed.
Let low_gt0 : 0 < 1 - eps. Proof. by rewrite subr_gt0; have /andP[] := eps_within. Qed.
Let high_gt0 : 0 < 1 + eps. Proof. exact: (ltr_paddr eps_ge0 ltr01). Qed.

Let root_gt0 : 0 < root.
Proof.
rewrite lt0r root_ge0 andbT; apply/eqP => root0; have := mulr_gt0 low_gt0 high_gt0.
rewrite (_ : _ * _ = root ^+ 2); last by rewrite root_by; ring.
by rewrite root0 expr0n ltxx.
Qed.

Let sum_four (M : zmodType) (P : pred (bool * bool)) (f : bool * bool -> M) :
  \sum_(i | P i) f i = (if P (true, true) then f (true, true) else 0) +
    (if P (true, false) then f (true, false) else 0) + ((if P (false, true) then f (false, true) else 0) +
    (if P (false, false) then f (false, false) else 0)).
Proof.
pose g a b := if P (a, b) then f (a, b) else 0.
rewrite big_mkcond (eq_bigr (fun i => g i.1 i.2)) => [|[] //].
by rewrite -(pair_bigA _ g) /= !big_bool.
Qed.

Definition four_values (i : bool * bool) : [lmodType R of R^o] := if i.1 then gamma else 0.

Let four_near i j : absolute R (four_values j - four_values i) <= gamma.
Proof.
rewrite /four_values /=; case: i.1; case: j.1; rewrite ?subrr ?subr0 ?sub0r ?normrN ?normr0 //.
- by rewrite ger0_norm.
- by rewrite ger0_norm.
Qed.

Lemma one_attained :
  let cluster (i : bool * bool) := if i.1 then Some tt else None in
  let w (i : bool * bool) := if i.1 then root else 1 + eps in
  let predicted (i : bool * bool) := (1 + eps) * w i in
  let merged (_ : unit) := 2%:R * (1 + eps) * root / (1 - eps) in
  near_prediction (absolute R) cluster w predicted four_values merged eps gamma /\
  absolute R (merged_output cluster w predicted four_values merged - true_output w four_values) =
    eps * gamma / (1 + root).
Proof.
move=> cluster w predicted merged.
have [low0 high0 root0] := And3 (lt0r_neq0 low_gt0) (lt0r_neq0 high_gt0) (lt0r_neq0 root_gt0).
have [low_ge0 high_ge0] := (ltW low_gt0, ltW high_gt0).
have pm_by r : predicted_merged cluster predicted r = 2%:R * (1 + eps) * root.
  by case: r; rewrite /predicted_merged sum_four /predicted /w /=; ring.
split.
  split=> //.
  - by move=> [[] b].
  - by move=> r; rewrite divr_gt0 ?mulr_gt0 ?ltr0n.
  - by exists (true, true).
  - move=> [a b] _; rewrite /predicted; split=> //; apply: ler_wpmul2r; first by case: a; rewrite ltW.
    by rewrite ler_add2l (le_trans _ eps_ge0) // oppr_le0.
  - move=> r; rewrite pm_by /merged; split; first by rewrite [X in X <= _]mulrC divfK.
    rewrite -subr_ge0 [X in _ <= X](_ : _ = 4%:R * eps * (1 + eps) * root / (1 - eps)); last by field.
    by nonnegative.
have unit_sum (f : unit -> R) : \sum_r f r = f tt by rewrite (big_pred1 tt) // => -[].
have [after_gt0 before_gt0] := (addr_gt0 root_gt0 low_gt0, addr_gt0 root_gt0 high_gt0).
have more_gt0 := addr_gt0 ltr01 root_gt0.
have -> : true_output w four_values = root * gamma / (root + (1 + eps)).
  rewrite /true_output !sum_four /w /four_values /=; rewrite /GRing.scale /=; field.
  by rewrite !gt_eqF // ?(addr_gt0 (addr_gt0 root_gt0 root_gt0) (addr_gt0 high_gt0 high_gt0)).
have -> : merged_output cluster w predicted four_values merged = root * gamma / (root + (1 - eps)).
  rewrite output_by_weights /merged_total unit_sum !sum_four /weight /cluster /= pm_by /predicted /w /merged.
  rewrite /four_values /=; rewrite /GRing.scale /=; field.
  rewrite low0 high0 root0 !gt_eqF //.
  by rewrite (addr_gt0 (mulr_gt0 (addr_gt0 high_gt0 high_gt0) low_gt0)) // !mulr_gt0 ?ltr0n.
have -> : root * gamma / (root + (1 - eps)) - root * gamma / (root + (1 + eps)) = eps * gamma / (1 + root).
  rewrite (_ : _ - _ = 2%:R * root * (eps * gamma) / ((1 + root) ^+ 2 - eps ^+ 2)); last first.
    rewrite (_ : (1 + root) ^+ 2 - _ = (root + (1 - eps)) * (root + (1 + eps))); last by ring.
    by field; rewrite !gt_eqF.
  have -> : (1 + root) ^+ 2 - eps ^+ 2 = 2%:R * root * (1 + root).
    rewrite (_ : (1 + root) ^+ 2 = root ^+ 2 + 1 + 2%:R * root); last by ring.
    by rewrite {1}root_by; have -> : eps ^+ 2 = 1 - root ^+ 2 by [rewrite root_by; ring]; ring.
  by field; rewrite root0 gt_eqF.
by rewrite /= ger0_norm // divr_ge0 ?mulr_ge0 // ltW.
Qed.

Lemma many_attained :
  let cluster (i : bool * bool) := Some i.1 in
  let w (i : bool * bool) := if i.1 then 1 - eps else 1 + eps in
  let predicted (_ : bool * bool) := (1 + eps) * (1 - eps) in
  let merged (r : bool) := 2%:R * if r then 1 + eps else 1 - eps in
  near_prediction (absolute R) cluster w predicted four_values merged eps gamma /\
  absolute R (merged_output cluster w predicted four_values merged - true_output w four_values) = eps * gamma.
Proof.
move=> cluster w predicted merged; have [low0 high0] := (lt0r_neq0 low_gt0, lt0r_neq0 high_gt0).
have low_high : 1 - eps <= 1 + eps by rewrite ler_add2l (le_trans _ eps_ge0) // oppr_le0.
have pm_by r : predicted_merged cluster predicted r = 2%:R * ((1 + eps) * (1 - eps)).
  by case: r; rewrite /predicted_merged sum_four /predicted /=; ring.
split.
  split=> //.
  - by move=> [[] b].
  - by case; rewrite mulr_gt0 ?ltr0n.
  - by exists (true, true).
  - move=> [[] b] _; rewrite /predicted /w /=; split=> //.
    + by rewrite ler_pmul2r.
    + by rewrite mulrC.
    by rewrite ler_pmul2l.
  - move=> r; rewrite pm_by /merged [(1 - eps) * _]mulrCA [(1 + eps) * (2%:R * _)]mulrCA !ler_pmul2l ?ltr0n //.
    by case: r; split=> //; [rewrite mulrC | rewrite ler_pmul2r].
have bool_sum (f : bool -> R) : \sum_r f r = f true + f false by exact: big_bool.
have -> : true_output w four_values = (1 - eps) * gamma / 2%:R.
  rewrite /true_output !sum_four /w /four_values /=; rewrite /GRing.scale /=; field.
  by rewrite (_ : _ + _ = 4%:R) ?pnatr_eq0 //; ring.
have -> : merged_output cluster w predicted four_values merged = (1 + eps) * gamma / 2%:R.
  rewrite output_by_weights /merged_total bool_sum !sum_four /weight /cluster /= !pm_by /predicted /w /merged.
  rewrite /four_values /=; rewrite /GRing.scale /=; field.
  rewrite low0 high0 (_ : 2%:R * (1 + eps) + _ = 4%:R) ?pnatr_eq0 //; ring.
have -> : (1 + eps) * gamma / 2%:R - (1 - eps) * gamma / 2%:R = eps * gamma by field.
by rewrite /= ger0_norm // mulr_ge0.
Qed.
End Attained.

(* kkv-5-sharp: As in kkv-5-prime, for every seminorm: the output moves by at most eps gamma, and for one cluster by at
   most eps gamma / (1 + sqrt(1 - eps^2)); for every eps and gamma there are instances that attain both. *)
Theorem kkv_5_sharp (R : realFieldType) :
  let change (E : lmodType R) (N : seminorm E) (I clusters : finType) (cluster : I -> option clusters) w predicted v
    merged := N (merged_output cluster w predicted v merged - true_output w v) in
  [/\ forall (E : lmodType R) (N : seminorm E) (I clusters : finType) (cluster : I -> option clusters)
        (w predicted : I -> R) (v : I -> E) (merged : clusters -> R) (eps gamma : R),
      near_prediction N cluster w predicted v merged eps gamma ->
        change E N I clusters cluster w predicted v merged <= eps * gamma /\
        ((forall r s : clusters, r = s) -> forall root, 0 <= root -> root ^+ 2 = 1 - eps ^+ 2 ->
          change E N I clusters cluster w predicted v merged <= eps * gamma / (1 + root)),
      forall eps gamma : R, 0 <= eps < 1 -> 0 <= gamma ->
        exists (I clusters : finType) (cluster : I -> option clusters) (w predicted : I -> R)
          (v : I -> [lmodType R of R^o]) (merged : clusters -> R),
        near_prediction (absolute R) cluster w predicted v merged eps gamma /\
        change _ (absolute R) I clusters cluster w predicted v merged = eps * gamma &
      forall eps gamma root : R, 0 <= eps < 1 -> 0 <= gamma -> 0 <= root -> root ^+ 2 = 1 - eps ^+ 2 ->
        exists (I : finType) (cluster : I -> option unit) (w predicted : I -> R)
          (v : I -> [lmodType R of R^o]) (merged : unit -> R),
        near_prediction (absolute R) cluster w predicted v merged eps gamma /\
        change _ (absolute R) I [finType of unit] cluster w predicted v merged = eps * gamma / (1 + root)].
Proof.
move=> change; split=> [E N I clusters cluster w predicted v merged eps gamma near |
    eps gamma eps_within gamma_ge0 | eps gamma root eps_within gamma_ge0 root_ge0 root_by].
- have gamma_ge0 := gamma_ge0 near; split=> [|one root root_ge0 root_by].
    by apply: le_trans (change_by_moved near) _; rewrite ler_wpmul2r // (many_clusters near).
  by apply: le_trans (change_by_moved near) _; rewrite mulrAC ler_wpmul2r // (one_cluster near one).
- by exists [finType of bool * bool], [finType of bool]; do 5 eexists; exact: many_attained.
by exists [finType of bool * bool]; do 5 eexists; exact: one_attained.
Qed.

(* kkv-5-free: As in kkv-5-prime, but for every eps, and for every seminorm: the output moves by at most gamma times the
   total variation of the attention, which is at most eps, and for one cluster eps / (1 + sqrt(1 - eps^2)). *)
Theorem kkv_5_free (R : realFieldType) (E : lmodType R) (N : seminorm E) (I clusters : finType)
    (cluster : I -> option clusters) (w predicted : I -> R) (v : I -> E) (merged : clusters -> R) (gamma : R) :
  let A i := w i / \sum_j w j in
  let u i := if cluster i is Some r then merged r / predicted_merged cluster predicted r * (predicted i / w i) else 1 in
  let Z := \sum_j A j * u j in
  let T := (\sum_j `|A j * u j / Z - A j|) / 2%:R in
  (forall i, 0 < w i) -> (forall r, 0 < merged r) -> (forall r, 0 < predicted_merged cluster predicted r) ->
  (forall i, is_member cluster i -> 0 < predicted i) -> (exists i : I, true) ->
  (forall i j, is_member cluster j -> N (v j - v i) <= gamma) ->
  N (merged_output cluster w predicted v merged - true_output w v) <= gamma * T /\
  forall eps, near_prediction N cluster w predicted v merged eps gamma ->
    T <= eps /\ ((forall r s : clusters, r = s) -> forall root, 0 <= root -> root ^+ 2 = 1 - eps ^+ 2 ->
      T <= eps / (1 + root)).
Proof.
move=> A u Z T w_gt0 merged_gt0 pm_gt0 member_gt0 some near.
have total_gt0 : 0 < \sum_j w j.
  by have [i _] := some; rewrite (bigD1 i) //= ltr_spaddl //; apply: sumr_ge0 => j _; exact: ltW.
have by_weight i : A i * u i = weight cluster w predicted merged i / \sum_j w j.
  rewrite /A /u /weight; case: (cluster i) => [r|]; last by rewrite mulr1.
  by field; rewrite !gt_eqF.
have -> : T = total_variation w (weight cluster w predicted merged).
  have weights_gt0 i : 0 < weight cluster w predicted merged i by exact: weight_gt0.
  rewrite (total_variation_half w_gt0 weights_gt0 some) /T; congr (_ / _); apply: eq_bigr => i _; congr `|_|.
  rewrite /growth by_weight; congr (_ - _); rewrite /Z (eq_bigr _ (fun j _ => by_weight j)) -mulr_suml.
  by rewrite invf_div mulrA divfK // gt_eqF.
split=> [|eps near_eps]; first by rewrite mulrC moved_attention.
by split; [exact: many_clusters near_eps | move=> one root; exact: (one_cluster near_eps one)].
Qed.
